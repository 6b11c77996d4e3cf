"""Readers of captioned images, one file per layout; `saywhy.data.datasets.readers` lists them."""
