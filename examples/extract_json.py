"""Takes data out of sentences, as objects of a pydantic class.

    pip install 'edgespec[schema]' pydantic
    python examples/extract_json.py ["A sentence."]

The text is valid in any case. Whether it is right depends on the model.
"""

import os
import sys

from pydantic import BaseModel, Field

import edgespec

SENTENCES = (
    "Anna lives in Paris and is 34 years old.",
    "Tom is 7, and his home is Leeds.",
)


class Person(BaseModel):
    """Whom a sentence is about."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=120)
    city: str | None = Field(max_length=20)


def main(*sentences: str) -> None:
    with edgespec.load(os.environ.get("EDGESPEC_MODEL"), context=512) as engine:
        for sentence in sentences or SENTENCES:
            prompt = f"Who is this about? Extract name, age and city as JSON: {sentence}"
            reply = engine.generate(prompt, schema=Person, max_tokens=100, temperature=0)
            person = Person.model_validate_json(reply.text)
            given = reply.stats.by_source.get("grammar", {}).get("accepted", 0)
            print(f"{person!r}: the schema gave {given} of {reply.stats.output_tokens} tokens")


if __name__ == "__main__":
    main(*sys.argv[1:])
