"""Small sets of our own making, in the formats of the published ones, and the text that people would write for them."""

import json

WIKITEXT = """ 
 = The King of <unk> = 
 
 The King of <unk> ( born 1 @,@ 590 ) was a well @-@ known lord of the U.S. ; he didn 't know it 's 2 @.@ 5 km / h . 
 
 = = Early life = = 
 
 " I will , " he said , " go to St. Albans . " The players ' house – built in 1590 – 92 – cost $ 5 ; 50 % . 
"""
WIKITEXT_WRITTEN = """
= The King of <unk> =

The King of <unk> (born 1,590) was a well-known lord of the U.S.; he didn't know it's 2.5 km/h.

== Early life ==

"I will," he said, "go to St. Albans." The players' house – built in 1590–92 – cost $5; 50%.
"""
PTB = """ no it was n't the king 's <unk> 
 the companies ' lord paid $ N million or N % of mr. smith 's house in the u.s. 
 they 're not here and he 'd go 
"""
PTB_WRITTEN = """no it wasn't the king's <unk>
the companies' lord paid $N million or N % of mr. smith's house in the u.s.
they're not here and he'd go
"""
ONE_BILLION = """" It 's a problem of the King , " he said ( in 1590 ) .
They don 't pay $ 5.50 at 6 : 30 ; they 're in the U.S. now ...
The lord is gone .
"""
ONE_BILLION_WRITTEN = """"It's a problem of the King," he said (in 1590).
They don't pay $5.50 at 6:30; they're in the U.S. now...
The lord is gone.
"""
LAMBADA = [
    "“Where is the king?” said the lord. He looked for him in the house and in the garden. At last he found the king",
    "My lord, I will not go to the battle, for the night is dark and I am afraid of the night",
    "The queen gave him her hand and he took her hand, and gave it to the duke of Gloucester",
    "Come, come, my good lord, tell me who it is that you would have, and I will give you all that I have",
]
CBT_SENTENCES = [
    "`` Good morning , my lord , '' said the King .",
    "The house was n't far from the castle .",
    "He saw a man -LRB- or a woman -RRB- there .",
    *["The King went .", "The lord came ."] * 9,
][:20]
CBT_QUESTIONS = [
    ("`` I will see the XXXXX , '' said he , `` and I do n't care ! ''", "king", "king|lord|castle|house"),
    ("And the XXXXX 's daughter was at home .", "castle", "duke|castle|man|woman"),
    ("At last he came to the XXXXX", "night", "battle|lord|night|queen"),
]
HELLASWAG = [
    ("The king takes the crown. He", ["puts it on his head.", "eats the sea.", "is not a the of.", "goes."], 0),
    ("A man draws his sword and", ["sleeps in the night with all of his friends.", "fights.", "sings a", "of the"], 1),
    ("My lord, the queen", ["is dead.", "the the the the.", "have been not the King of England.", "and"], 2),
]
ENWIK8 = (
    '<mediawiki xmlns="made">\n  <page>\n    <title>Königin</title>\n    the King\n  </page>\n'.encode()
    + b"\xff\x80 end"
)
TEXT8 = b" the king of england and the queen of france are in the castle and the lord is gone"


def write_all(folder):
    """Write all sets into a folder, under their published names: {task: path}"""
    blocks = []
    for text, answer, choices in CBT_QUESTIONS:
        lines = [f"{number} {sentence}" for number, sentence in enumerate(CBT_SENTENCES, 1)]
        blocks.append("\n".join([*lines, f"21 {text}\t{answer}\t\t{choices}"]) + "\n\n")
    hellaswag = [{"ind": 1, "ctx": c, "endings": e, "label": n, "split": "val"} for c, e, n in HELLASWAG]
    contents = {
        "lambada": ("lambada_test.jsonl", lines_of({"text": text} for text in LAMBADA)),
        "cbt-cn": ("cbtest_CN_valid_2000ex.txt", "".join(blocks)),
        "cbt-ne": ("CBTest/data/cbtest_NE_test_2500ex.txt", "".join(blocks[:2])),
        "wikitext2": ("wikitext-2/wiki.test.tokens", WIKITEXT),
        "ptb": ("ptb.test.txt", PTB),
        "enwik8": ("enwik8", ENWIK8),
        "text8": ("text8", TEXT8),
        "wikitext103": ("wikitext-103/wiki.test.tokens", WIKITEXT),
        "1bw": ("news.en.heldout-00000-of-00050", ONE_BILLION),
        "hellaswag": ("hellaswag_val.jsonl", lines_of(hellaswag)),
    }
    paths = {}
    for task, (name, content) in contents.items():
        paths[task] = folder / name
        paths[task].parent.mkdir(parents=True, exist_ok=True)
        paths[task].write_bytes(content if isinstance(content, bytes) else content.encode())
    return paths


def lines_of(rows):
    """JSON lines."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
