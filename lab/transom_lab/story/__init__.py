"""Stories told in the terminal: what memory and scheduler really do, beside what another engine did."""
