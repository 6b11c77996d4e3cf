"""`saywhy serve`: a page that captions a picture and shows why each word was said, and its interface for programs."""
