"""EdgeSpec: language models at full speed on the machine you own."""
