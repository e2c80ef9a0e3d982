"""The report of a job (``--report FILE.html``) as an HTML page."""
