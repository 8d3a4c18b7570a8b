"""`transom chat`: a conversation in the terminal, with a server or with a model in this process."""
