"""Lines for haiku and rhymes, by topic: what the bundled model learns short verse from."""

from __future__ import annotations

# A topic; then three first lines, three middle lines and three last lines, of 5, 7 and 5 syllables.
# Every combination is a haiku, so one topic gives 27.
HAIKU_LINES = """
rain
Soft rain on the roof|Grey clouds drifting low|Drops upon the leaves
The garden drinks and grows green|Puddles hold the quiet sky|Small rivers run down the glass
The world is washed clean|I listen and rest|A drop, then silence

snow
Snow falls in the night|White fields, white rooftops|The first flakes of snow
Each branch wears a coat of white|Footprints lead across the field|The village sleeps without sound
The cold air is still|Winter has come home|All the world is hushed

the sea
Waves roll to the shore|Blue sea, bluer sky|Salt wind on my face
White gulls cry above the sand|The tide brings shells and takes them|A small boat sails far away
The sea never sleeps|I stand and listen|Foam covers my feet

the moon
The moon climbs the hill|Silver moon tonight|A pale, quiet light
Its light lies upon the lake|Shadows walk across the field|An owl calls from the dark trees
The night holds its breath|I am not alone|Stars gather around

autumn
Red leaves in the wind|Gold light on the hills|An old apple tree
Summer says a slow goodbye|Geese fly south in a long line|The paths are covered with leaves
The days grow shorter|Smoke from a chimney|The first frost is near

spring
The snow melts away|Small buds on the branch|A warm wind at last
Birds are building in the trees|Green grass pushes through the earth|Blossoms open to the sun
The world wakes again|Spring is here today|Bees begin to hum

summer
Long and golden days|Hot sun on the field|Bare feet in the grass
Children laugh beside the lake|Crickets sing until the dark|The corn stands tall and yellow
Evening comes slowly|Cool water at last|The whole sky is blue

winter
Cold wind at the door|Ice upon the pond|Bare trees in the snow
Inside, a small fire burns bright|The birds have flown far away|The sun is low and sleepy
We wait for the spring|Nights are long and still|Warm soup on the stove

a cat
Cat on the warm sill|Two green eyes that shine|Soft paws on the floor
She dreams of birds in the sun|He stretches and yawns again|A purr is her only word
Then she sleeps all day|The mouse is quite safe|Soon it is dinner

a dog
A wet, happy nose|My dog at the door|He runs through the grass
His tail is wagging with joy|He brings me the ball again|Barking at every new sound
My friend is waiting|Home is where he is|He sleeps by my feet

a tree
The old tree stands tall|Roots deep in the earth|One tree on the hill
Its branches reach for the sky|A hundred birds call it home|The wind is its only song
It asks for nothing|Leaves dance in the light|It has time to grow

a river
The river runs on|Clear and cold water|Stones under the stream
It never asks for the way|Fish flash silver in the sun|It sings as it turns and falls
The sea is waiting|Nothing stays the same|I watch it go by

the wind
Wind in the tall grass|The wind has no home|A whisper outside
It plays with leaves in the street|It pushes clouds through the sky|It knocks upon every door
Then it moves along|No one sees it pass|The night grows quiet

the stars
Stars above the town|So many small lights|The dark sky is deep
Each one is a distant sun|I lie in the grass and count|They have shone for many years
I make a small wish|And they wink at me|How quiet they are

a flower
One flower opens|A rose by the gate|Petals red and soft
A bee comes to say hello|Morning dew shines on its leaves|It turns its face to the sun
The garden smiles back|Its scent fills the air|Tomorrow, one more

a bird
A bird on the branch|Small wings in the sky|It sings before dawn
Its song wakes the sleeping house|It carries grass to its nest|It hops along the green lawn
Then it flies away|The sky is its home|Morning has begun

a mountain
The mountain stands still|Snow on the high peak|A path through the rocks
Clouds rest upon its shoulders|It has seen a thousand years|Far below, the valley sleeps
I am small and glad|The air is so clear|One step, then one more

the sun
The sun climbs the sky|Warm light on my face|Gold over the hills
Every flower turns to look|The long night has gone away|Shadows hide behind the trees
A new day begins|The birds start to sing|The whole world is bright

night
The lamps are all out|Night comes to the town|Dark and quiet street
A cat walks along the wall|Only the clock is awake|The stars look down from above
Tomorrow can wait|Sleep is coming soon|Dreams open their doors

the morning
Light on the curtains|The first bird wakes up|Cool air, open door
The kettle begins to sing|Dew is shining on the grass|The town is rubbing its eyes
A new day is here|I breathe and begin|Good morning, dear world

a friend
A knock at my door|We walk side by side|A kind word, a smile
We share our bread and our tea|We laugh at the same old jokes|You listen when I am sad
My friend is with me|The road is not long|Thank you for this day

tea
A warm cup of tea|Steam above the cup|The kettle whistles
It warms my hands and my heart|Rain is falling on the street|I sit and watch the slow clouds
There is time enough|One more quiet sip|The afternoon rests

a computer
A soft, steady hum|Small lights in the dark|My screen glows at night
It counts much faster than me|Words appear upon the page|It waits for my next command
Then it needs a rest|I save and I sleep|Its fan sings to me
"""

# A topic; then rhyming pairs of lines. A short poem is two of them in either order.
RHYME_LINES = """
rain
The rain comes down on street and tree,|It drums a little song for me.
The puddles shine, the ducks are glad,|No rainy day is ever bad.

snow
The snow is falling, soft and white,|It covers every roof tonight.
We build a man with hat and nose,|And run back home with frozen toes.

the sea
The sea is wide, the sea is blue,|It sings a song for me and you.
The waves roll in, the waves roll out,|The seagulls turn and wheel about.

the moon
The moon is round, the moon is bright,|It keeps a lamp lit through the night.
It looks in at my window pane,|And then it hides in cloud again.

spring
The spring is here, the birds return,|The hills are green with grass and fern.
The flowers lift their heads to see|The blossom on the apple tree.

a cat
My little cat is soft and grey,|She sleeps for nearly all the day.
At night she walks along the wall,|And does not fear the dark at all.

a dog
My dog runs fast, my dog runs far,|He likes to bark at every car.
But when the day is almost through,|He lays his head upon my shoe.

a tree
The old tree stands upon the hill,|In sun and storm it stands there still.
A bird has built its nest up high,|Between the green leaves and the sky.

the stars
The stars come out when day is done,|I count them slowly, one by one.
They shine above the sleeping town,|Like tiny lanterns looking down.

the sun
The sun gets up and starts to shine|On every field and every vine.
It warms the roofs, it warms the ground,|And throws its gold on all around.

a friend
A friend is someone kind and true,|Who likes to sit and talk with you.
When days are dark and skies are grey,|A friend can chase the clouds away.

home
A little house, an open door,|A cat asleep upon the floor.
However far my feet may roam,|The best road is the one to home.
"""


def by_topic(text: str) -> dict[str, list[list[str]]]:
    """Return the lines below each topic, split at the bars."""
    blocks = (block.split("\n") for block in text.strip().split("\n\n"))
    return {topic: [line.split("|") for line in lines] for topic, *lines in blocks}


HAIKU = by_topic(HAIKU_LINES)
RHYMES = {
    topic: ["\n".join(pair) for pair in pairs] for topic, pairs in by_topic(RHYME_LINES).items()
}
