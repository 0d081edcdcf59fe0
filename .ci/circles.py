"""Fails where modules of a crate use each other in a circle: A what B defines, and B, perhaps over others, what A defines.

A module is a file. It uses what its paths lead to, through `use` and re-exports, to the file that defines it. What a module
only gathers from the files below it, as the root of a crate does, it does not use. What is compiled for tests alone does not
count, nor what macros write.
"""

import re
import sys
from pathlib import Path

# Circles that stay: definitions that name each other, each in a file of its own.
STAY = {
    # A value is an array or an implicit array, which has values for children and a type that makes it again of them.
    "core: array_type implicit_array value",
    # A tree is made of leaves, which are trees; both can be arguments, which become trees of arrays.
    "core: tree::arguments tree::definition tree::leaf",
}

COMMENT_OR_TEXT = re.compile(
    r'//[^\n]*|/\*.*?\*/|b?r(?P<hash>#*)".*?"(?P=hash)|b?"(?:\\.|[^"\\])*"|b?\'(?:\\[^\']+|[^\'\\])\'', re.S
)
FOR_TESTS = re.compile(r"#\[cfg\((?:test|all\(test\b[^\]]*)\)\]")
DEFINES = re.compile(
    r"^\s*(?:pub(?:\([^)]*\))?\s+)?(?:const\s+|async\s+|unsafe\s+|extern\s+)*"
    r"(?:fn|struct|enum|union|trait|type|const|static|macro_rules!)\s+(\w+)",
    re.M,
)
USES = re.compile(r"(\bpub(?:\([^)]*\))?\s+)?\buse\s+([^;]+);")
PATH = re.compile(r"(?<![\w:$])(\$?\w+(?:::\w+)+)")


def code(text):
    """The code without comments, literals and what is for tests alone."""
    text = COMMENT_OR_TEXT.sub(" ", text)
    kept, at = [], 0
    for mark in FOR_TESTS.finditer(text):
        if mark.start() >= at:
            kept.append(text[at : mark.start()])
            at = end_of_item(text, mark.end())
    return "".join(kept) + text[at:]


def end_of_item(text, at):
    depth = 0
    for place in range(at, len(text)):
        depth += (text[place] in "{([") - (text[place] in "})]")
        if depth == 0 and text[place] in "};,":
            return place + 1
    return len(text)


def paths_of(tree, before=()):
    """Each path of a `use` tree, and its name there."""
    head, brace, inner = tree.strip().partition("{")
    if not brace:
        path, _, name = head.partition(" as ")
        path = [*before, *(part.strip() for part in path.split("::") if part.strip())]
        if path and path[-1] == "self":
            path.pop()
        yield path, name.strip() or path[-1]
        return
    before = [*before, *(part.strip() for part in head.split("::") if part.strip())]
    depth, begin = 0, 0
    inner = inner[: inner.rindex("}")] + ","
    for place, letter in enumerate(inner):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            if inner[begin:place].strip():
                yield from paths_of(inner[begin:place], before)
            begin = place + 1


class Module:
    def __init__(self, text):
        self.text = code(text)
        self.defines = set(DEFINES.findall(self.text))
        self.uses = [(*each, bool(gathers)) for gathers, tree in USES.findall(self.text) for each in paths_of(tree)]

    def paths(self):
        """Each path, and whether it is only passed on."""
        own = USES.sub(" ", self.text)
        for path, name, gathers in self.uses:
            yield (path[:-1] if path[-1] == "*" else path), gathers and not re.search(rf"(?<![.:\w])(?<!fn )(?<!mod ){name}\b", own)
        for path in PATH.findall(own):
            yield path.lstrip("$").split("::"), False


class Crate:
    def __init__(self, folder):
        self.modules = {}
        root = next(file for name in ("lib.rs", "main.rs") if (file := folder / name).exists())
        self.read((), root, folder)

    def read(self, name, file, folder):
        self.modules[name] = module = Module(file.read_text())
        for child in re.findall(r"\bmod\s+(\w+)\s*;", module.text):
            for file in (folder / f"{child}.rs", folder / child / "mod.rs"):
                if file.exists():
                    self.read((*name, child), file, folder / child)

    def definer(self, name, path, seen):
        """The module that defines what a path names, from a module on."""
        if not path:
            return name
        if (*name, path[0]) in self.modules:
            return self.definer((*name, path[0]), path[1:], seen)
        if path[0] in self.modules[name].defines:
            return name
        if (name, path[0]) in seen:
            return None
        seen = seen | {(name, path[0])}
        for other, alias, _ in self.modules[name].uses:
            if other[-1] == "*" and (gathers := self.leads(name, other[:-1], seen)) not in (None, name):
                found = self.definer(gathers, path[:1], seen)
            else:
                found = self.leads(name, other, seen) if alias == path[0] else None
            if found is not None:
                return found
        return None

    def leads(self, name, path, seen=frozenset()):
        if path[0] == "crate":
            return self.definer((), path[1:], seen)
        relative = path[0] in ("self", "super")
        while path and path[0] in ("self", "super"):
            name, path = (name[:-1] if path[0] == "super" else name), path[1:]
        return self.definer(name, path, seen) if relative or (*name, path[0]) in self.modules else None

    def arrows(self):
        return {name: sorted(self.used_by(name) - {None, (), name}) for name in self.modules if name}

    def used_by(self, name):
        leads = ((self.leads(name, path), gathers) for path, gathers in self.modules[name].paths())
        return {other for other, gathers in leads if not (gathers and other and other[: len(name)] == name)}


def circles(arrows):
    """The strongly connected parts of more than one module, by Tarjan's algorithm."""
    found, order, low, waiting = [], {}, {}, []

    def visit(name):
        order[name] = low[name] = len(order)
        waiting.append(name)
        for other in arrows[name]:
            if other not in order:
                visit(other)
            if other in waiting:
                low[name] = min(low[name], low[other])
        if low[name] == order[name]:
            part = waiting[waiting.index(name) :]
            del waiting[waiting.index(name) :]
            found.extend([sorted(part)] if len(part) > 1 else [])

    for name in arrows:
        if name not in order:
            visit(name)
    return found


def main():
    unused, failed = set(STAY), False
    for folder in sorted(Path("crates").glob("*/src")):
        arrows = Crate(folder).arrows()
        for circle in circles(arrows):
            text = f"{folder.parent.name}: " + " ".join("::".join(name) for name in circle)
            if text in STAY:
                unused.discard(text)
                continue
            failed = True
            print(f"error: a circle of {len(circle)} modules in {text}")
            for name in circle:
                others = ", ".join("::".join(other) for other in arrows[name] if other in circle)
                print(f"    {'::'.join(name)} uses {others}")
    for text in sorted(unused):
        failed = True
        print(f"error: .ci/circles.py names a circle that there is not: {text}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
