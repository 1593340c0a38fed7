"""The HTTP server: OpenAI's completions over engines in processes of their own."""
