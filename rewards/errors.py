"""The one exception that a user's mistake raises; the command line prints it without a traceback."""


class UserError(ValueError):
    """A mistake in a config, a data file, a tokenizer or a model folder: one or two lines that name the place and say what would
    be valid."""
