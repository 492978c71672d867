"""A user's mistakes: said in one line, without a traceback."""


class UserError(Exception):
    """What a user can mend: a file that is not there, a value out of range, an extra not installed."""
