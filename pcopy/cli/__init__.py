"""From words to values: commands, options, help, and advice on mistakes."""
