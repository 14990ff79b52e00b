"""Short asks and their answers, made from templates: what newcomers say first."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import product

from training.verses import HAIKU, RHYMES

Pair = tuple[str, str]

HAIKU_ASKS = (
    "Write a haiku about {}.",
    "Write me a haiku about {}.",
    "Can you write a haiku about {}?",
    "Please write a haiku about {}",
    "A haiku about {}, please.",
    "haiku about {}",
)
POEM_ASKS = (
    "Write a short poem about {}.",
    "Write a poem about {}.",
    "Can you write me a little poem about {}?",
    "Make up a rhyme about {}.",
    "Tell me a poem about {}.",
)
STORY_ASKS = (
    "Tell me a short story about {}.",
    "Tell me a story about {}.",
    "Write a short story about {}.",
    "Write a story about {}.",
    "Can you tell me a story about {}?",
    "Tell a story about {}",
)
LISTS: dict[str, tuple[str, ...]] = {
    "fruits": ("apple", "banana", "cherry", "grape", "lemon", "orange", "pear", "plum", "peach"),
    "vegetables": ("carrot", "potato", "onion", "pea", "cabbage", "tomato", "bean", "pumpkin"),
    "animals": ("cat", "dog", "horse", "cow", "elephant", "lion", "bear", "rabbit", "fox"),
    "birds": ("sparrow", "robin", "eagle", "owl", "duck", "crow", "swan", "parrot"),
    "colours": ("red", "blue", "green", "yellow", "orange", "purple", "white", "black"),
    "colors": ("red", "blue", "green", "yellow", "orange", "purple", "white", "black"),
    "countries": ("France", "Spain", "Italy", "Japan", "Canada", "Brazil", "India", "Kenya"),
    "cities": ("London", "Paris", "Rome", "Berlin", "Madrid", "Tokyo", "Cairo", "Lisbon"),
    "drinks": ("water", "milk", "tea", "coffee", "apple juice", "lemonade", "hot chocolate"),
    "tools": ("hammer", "saw", "spade", "ladder", "screwdriver", "brush", "knife"),
    "flowers": ("rose", "tulip", "daisy", "lily", "violet", "sunflower", "poppy"),
    "sports": ("football", "tennis", "swimming", "running", "cycling", "basketball", "skating"),
    "instruments": ("piano", "violin", "flute", "drum", "guitar", "trumpet", "harp"),
    "things in a kitchen": ("a pot", "a cup", "a spoon", "a plate", "an oven", "a fork"),
    "clothes": ("a shirt", "a coat", "a hat", "a scarf", "gloves", "socks", "shoes"),
}
NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five"}
CAPITALS = dict(
    line.split(" = ")
    for line in """France = Paris
Germany = Berlin
Italy = Rome
Spain = Madrid
Portugal = Lisbon
England = London
Ireland = Dublin
Scotland = Edinburgh
Norway = Oslo
Sweden = Stockholm
Finland = Helsinki
Denmark = Copenhagen
Poland = Warsaw
Austria = Vienna
Hungary = Budapest
Greece = Athens
Russia = Moscow
Turkey = Ankara
Egypt = Cairo
Kenya = Nairobi
Japan = Tokyo
China = Beijing
India = New Delhi
Thailand = Bangkok
Canada = Ottawa
Mexico = Mexico City
Cuba = Havana
Peru = Lima
Chile = Santiago
Argentina = Buenos Aires
Belgium = Brussels
the Netherlands = Amsterdam
the United States = Washington, D.C.
Australia = Canberra""".splitlines()
)
OPPOSITES = (
    "hot cold, big small, up down, left right, day night, happy sad, fast slow, old new, "
    "open closed, full empty, hard soft, light dark, wet dry, loud quiet, high low, rich poor, "
    "early late, long short, strong weak, clean dirty, near far, first last, good bad, wide narrow"
)
SOUNDS = "cow moo, cat meow, dog woof, sheep baa, duck quack, pig oink, horse neigh, owl hoot"
# One question a line, its wordings parted by |; then its answers, one a line, after >.
QUESTIONS = """
Why is the sky blue?|Tell me why the sky is blue.
> The air scatters blue light more than red light, so the sky looks blue.
What is rain?|Explain rain.|Where does rain come from?
> Rain is water that falls from clouds. The sun warms the sea, vapour rises, and clouds form.
Why do we sleep?|Why is sleep important?
> We sleep so that the body and the mind can rest.
What is the sun?|Explain the sun in one sentence.
> The sun is a star, a great ball of hot gas that gives us light and warmth.
What is the moon?|Explain the moon in one sentence.
> The moon is a ball of rock that travels around the earth.
How many days are in a week?|How many days does a week have?
> There are seven days in a week.
How many months are in a year?|How many months does a year have?
> There are twelve months in a year.
How many legs does a spider have?
> A spider has eight legs.
What do bees make?|What do bees do?
> Bees visit flowers and make honey.
What do plants need to grow?|What does a plant need?
> Plants need water, light, air and good soil.
How do I make tea?|How do you make a cup of tea?|Tell me how to make tea.
> 1. Boil some water.\\n2. Put a tea bag in a cup.\\n3. Pour the water in.\\n4. Wait four minutes.
How can I sleep better?|Give me a tip for better sleep.
> Go to bed at the same time each night, and put away bright screens an hour before.
How can I learn faster?|Give me a tip for learning.
> Study a little every day, and try to explain what you learnt in your own words.
How do I stay healthy?|Give me a health tip.
> Eat well, drink water, move every day and sleep enough.
How do I make a friend?|How can I make friends?
> Smile, say hello, ask a question and listen to the answer.
I am sad.|I feel sad today.|I'm feeling down.
> I am sorry to hear that. Do you want to tell me what happened?
I am happy.|I feel great today!
> That is good to hear! What made your day so nice?
I am tired.|I'm so tired.
> Then it may be time to rest. A short nap or an early night can help.
I am bored.|I'm bored.
> Shall I tell you a story, or would you like a riddle?
Tell me a riddle.|Do you know a riddle?
> What has hands but cannot clap? A clock!
> What has a neck but no head? A bottle!
> What gets wetter the more it dries? A towel!
Tell me a joke.|Do you know a joke?|Make me laugh.
> Why did the chicken cross the road? To get to the other side!
> What do you call a bear with no teeth? A gummy bear!
> Why was the book so sad? It had too many problems: it was a maths book!
What is a computer?|Explain what a computer is.
> A computer is a machine that follows instructions and works with numbers, words and pictures.
What is a language model?|Explain what a language model is.
> A language model is a program that reads text and guesses, word by word, what comes next.
What is the internet?
> The internet is a great net of computers that send messages to one another.
What is love?
> Love is caring deeply for someone and wanting them to be well.
What is music?
> Music is sound put in order, with rhythm and melody.
What should I eat for dinner?|What can I cook tonight?
> How about soup with bread? It is warm, simple and quick.
What should I read?|Can you recommend a book?
> Try a book of fairy tales, such as those of the brothers Grimm.
What colour is the sky?|What color is the sky?
> On a clear day the sky is blue.
What colour is grass?|What color is grass?
> Grass is green.
Can you help me?|I need help.|Help
> Of course. What do you need?
Can you write a story?|Do you know any stories?
> Yes! What should the story be about?
Say something.|Say something nice.
> I hope your day is going well.
Write a sentence.|Write one sentence.
> The little boat sailed slowly across the quiet lake.
What is 2 + 2?|What is two plus two?
> 2 + 2 = 4.
Are you there?|Hello?
> Yes, I am here. How can I help?
Good night.|Good night!
> Good night! Sleep well.
Good evening.|Good evening!
> Good evening! How can I help you?
"""
SUBJECT = re.compile(
    r"[Tt]here (?:once )?(?:was|were|lived) (?:once )?((?:a|an|two|three) [a-z][a-z ]{2,40}?)"
    r"(?= named| called| who| that| in | with|[.,;])"
)


def story_prompt(text: str, draw: float) -> str | None:
    """Return what a story could be the answer to, or None where its hero isn't plainly named.

    draw: a number in [0, 1) that chooses the words.
    """
    found = SUBJECT.search(text[:200])
    if found is None or found[1].split()[-1] in {"time", "day"}:
        return None
    return STORY_ASKS[int(draw * len(STORY_ASKS))].format(found[1])


def verses(rng: random.Random) -> Iterator[Pair]:
    """Yield every haiku, and short poems."""
    for topic, lines in HAIKU.items():
        for haiku in product(*lines):
            yield rng.choice(HAIKU_ASKS).format(without_article(topic, rng)), "\n".join(haiku)
    for topic, pairs in RHYMES.items():
        for ask in POEM_ASKS:
            chosen = rng.sample(pairs, len(pairs))
            yield ask.format(without_article(topic, rng)), "\n".join(chosen)


def without_article(topic: str, rng: random.Random) -> str:
    """Return `a cat` also as `cats`, `the sea` also as `sea`: people ask in all these ways."""
    article, _, noun = topic.rpartition(" ")
    if article == "a" and rng.random() < 0.3:
        return {"a computer": "computers"}.get(topic, f"{noun}s")
    return noun if article == "the" and rng.random() < 0.3 else topic


def lists(rng: random.Random) -> Iterator[Pair]:
    """Yield lists of things of one kind."""
    for (kind, things), number in product(LISTS.items(), NUMBERS):
        for ask in ("Name {} {}.", "List {} {}.", "Give me {} {}.", "Tell me {} {}"):
            chosen = rng.sample(things, number)
            word = NUMBERS[number] if rng.random() < 0.7 else str(number)
            if rng.random() < 0.5:
                answer = "\n".join(f"{i}. {thing}" for i, thing in enumerate(chosen, 1))
            else:
                answer = f"{', '.join(chosen[:-1])} and {chosen[-1]}."
            yield ask.format(word, kind), answer[0].upper() + answer[1:]


def facts(rng: random.Random) -> Iterator[Pair]:
    """Yield small facts that the model can know by heart."""
    for country, city in CAPITALS.items():
        sentence = f"The capital of {country} is {city.rstrip('.')}."
        yield f"What is the capital of {country}?", sentence
        yield rng.choice(("Capital of {}?", "Tell me the capital of {}.")).format(country), sentence
    for couple in OPPOSITES.split(", "):
        for word, other in (couple.split(), couple.split()[::-1]):
            answer = f'The opposite of "{word}" is "{other}".'
            yield f"What is the opposite of {word}?", answer
            yield f'Give the opposite of "{word}".', answer
    for couple in SOUNDS.split(", "):
        animal, sound = couple.split()
        yield f"What does a {animal} say?", f"A {animal} says {sound}."
    for a, b in product(range(11), range(11)):
        yield f"What is {a} + {b}?", f"{a} + {b} = {a + b}."
        if a >= b:
            yield f"What is {a} - {b}?", f"{a} - {b} = {a - b}."


def questions() -> Iterator[Pair]:
    """Yield the written questions, each in all its wordings and with all its answers."""
    asks: list[str] = []
    for line in QUESTIONS.strip().splitlines():
        if line.startswith("> "):
            yield from ((ask, line[2:].replace("\\n", "\n")) for ask in asks)
        else:
            asks = line.split("|")


def short_asks() -> Iterator[Pair]:
    """Yield prompts and their replies, the same ones every time."""
    rng = random.Random(0)
    yield from verses(rng)
    yield from lists(rng)
    yield from facts(rng)
    yield from questions()
