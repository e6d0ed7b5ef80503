"""The engine's settings as others ask for them: by an argparse parser that they bring."""

from ..flags import add_options, table


class ServerArgs:
    """As in the real engine, whose other members have no use here."""

    @staticmethod
    def add_cli_args(parser):
        """Add every option of the engine to a parser."""
        add_options(parser, table())
