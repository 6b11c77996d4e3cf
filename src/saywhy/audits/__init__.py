"""Audits: experiments that test whether explanations are true."""
