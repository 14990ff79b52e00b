"""The engine, its decode loop, and what is built on it: chats, batches, votes."""
