"""Command lines of all programs: options, configuration files, help texts, and advice on mistyped options."""
