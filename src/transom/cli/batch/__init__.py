"""`transom run-batch`: OpenAI's batch files, answered offline by the server's own endpoints."""
