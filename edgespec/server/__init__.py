"""`edgespec serve`: one engine for programs that speak OpenAI's protocol or Ollama's."""
