"""An interpreter of the language of chat templates that meters every step."""
