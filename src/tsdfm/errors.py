"""Errors a user can cause. The command line prints them as one line and ends with exit code 2."""


class UserError(Exception):
    """Something the user can mend: the message says what is wrong and what to do about it, in one line."""
