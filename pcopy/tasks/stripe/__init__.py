"""Tasks that report and change the Lustre layouts of existing files (the program ``pstripe``)."""
