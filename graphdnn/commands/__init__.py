"""The command `graphdnn`, one file a subcommand."""
