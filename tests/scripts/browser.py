"""Opens every page of a built book in a headless Chromium, and says what a reader would find wrong.

    browser.py CHROMIUM BOOK SCREENSHOTS

Each page is laid out as on a phone, by day and by night. Wrong are what reaches beyond the screen and cannot be scrolled to,
images that are not there, text that can hardly be told from what is behind it, links to places that do not exist, and
whatever the console calls an error. Ten pages are also written as pictures, for people to look at.

Nothing but Python's own library: the browser is told what to do through a pipe, in its DevTools protocol.
"""

import base64
import functools
import http.server
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import urllib.parse

PHONE, DESK = (380, 800), (1280, 900)
# Some of each kind: chapters, recipes, mathematics, tables, drawings.
PICTURED = {
    "first_layer.html",
    "models.html",
    "straight_through.html",
    "how_to/come_from.html",
    "how_to/elsewhere.html",
    "understand/bytes.html",
    "understand/gradients.html",
    "reference/errors.html",
    "reference/figures.html",
    "reference/primitives.html",
}
# Black on white is 21. Code is colored, and its comments are pale on purpose.
LEAST_CONTRAST = 3

EXAMINED = r"""
(async () => {
    const least = LEAST, width = WIDTH, wrong = [];
    await document.fonts.ready;
    for (const image of document.images) {
        await image.decode().catch(() => {});
        if (!image.naturalWidth) wrong.push(`no image at ${image.getAttribute("src")}`);
    }
    const named = (element) => {
        const text = element.textContent.trim().replace(/\s+/g, " ").slice(0, 40);
        return `<${element.tagName.toLowerCase()}> ${JSON.stringify(text)}`;
    };
    const main = document.querySelector("main");
    const scrolls = (element) => {
        for (let at = element; at && at !== main; at = at.parentElement) {
            if (["auto", "scroll"].includes(getComputedStyle(at).overflowX)) return true;
        }
        return false;
    };
    const beyond = [...main.querySelectorAll("*")].filter((element) => {
        const box = element.getBoundingClientRect();
        return box.width && (box.right > width + 1 || box.left < -1) && !scrolls(element.parentElement);
    });
    // Who reaches beyond takes those around it along: the innermost are to blame.
    for (const element of beyond.filter((one) => !beyond.some((other) => other !== one && one.contains(other)))) {
        const box = element.getBoundingClientRect();
        wrong.push(`${named(element)} reaches from ${Math.round(box.left)} to ${Math.round(box.right)} of ${width}`);
    }
    if (document.documentElement.scrollWidth > width) wrong.push(`the page is ${document.documentElement.scrollWidth} wide`);

    const channels = (color) => color.match(/[\d.]+/g).map(Number);
    const light = (color) => {
        const [r, g, b] = channels(color).map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const color = getComputedStyle(at).backgroundColor;
            if ((channels(color)[3] ?? 1) > 0.5) return color;
        }
        return "rgb(255, 255, 255)";
    };
    const pale = new Map();
    const walker = document.createTreeWalker(main, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        if (!walker.currentNode.data.trim() || ["STYLE", "SCRIPT", "style"].includes(element.tagName)) continue;
        if (!element.getClientRects().length) continue;
        const style = getComputedStyle(element);
        // A text in a box of an image has that behind it, which only a person can tell.
        const color = element.namespaceURI.endsWith("svg") ? style.fill : style.color;
        if (color === "none" || style.visibility === "hidden") continue;
        const [one, other] = [light(color), light(behind(element))];
        const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
        if (contrast < least) pale.set(`${color} on ${behind(element)}: ${contrast.toFixed(1)}`, element);
    }
    for (const [colors, element] of pale) wrong.push(`${named(element)} is ${colors}`);
    return {
        wrong,
        ids: [...document.querySelectorAll("[id]")].map((element) => element.id),
        links: [...main.querySelectorAll("a[href]")].map((link) => link.href),
        height: document.documentElement.scrollHeight,
    };
})()
"""

# Whether the search of the book finds anything, once its index is loaded.
SEARCHED = r"""
(async () => {
    const toggle = document.querySelector("#search-toggle");
    if (!toggle) return 0;
    toggle.click();
    const bar = document.querySelector("#searchbar");
    for (let tries = 0; tries < 1200; tries++) {
        bar.value = "materialize";
        bar.dispatchEvent(new KeyboardEvent("keyup", { bubbles: true }));
        bar.dispatchEvent(new InputEvent("input", { bubbles: true }));
        await new Promise((resolve) => setTimeout(resolve, 50));
        const found = document.querySelectorAll("#searchresults li").length;
        if (found) return found;
    }
    return 0;
})()
"""


class Browser:
    """A tab of a browser of its own, which is asked and answers in JSON with a zero byte after each message."""

    def __init__(self, program, profile):
        self.errors, self.loaded, self.session, self.number = [], False, None, 0
        ours, theirs = os.pipe(), os.pipe()
        # The protocol wants these two numbers, which may be taken here by anything.
        command = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
        options = [
            "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}", "--no-first-run",
            "--no-default-browser-check", "--disable-gpu", "--disable-extensions", "--disable-background-networking",
            "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb",
        ]
        if os.geteuid() == 0:
            options.append("--no-sandbox")
        self.process = subprocess.Popen(
            ["bash", "-c", command, "bash", str(ours[0]), str(theirs[1]), program, *options, "about:blank"],
            pass_fds=(ours[0], theirs[1]), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        os.close(ours[0])
        os.close(theirs[1])
        self.to, self.fro = os.fdopen(ours[1], "wb", buffering=0), os.fdopen(theirs[0], "rb")
        self.rest = b""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def message(self):
        while b"\0" not in self.rest:
            read = os.read(self.fro.fileno(), 1 << 20)
            if not read:
                raise SystemExit("FAILED: the browser has ended")
            self.rest += read
        first, self.rest = self.rest.split(b"\0", 1)
        return json.loads(first)

    def ask(self, method, **parameters):
        self.number += 1
        question = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            question["sessionId"] = self.session
        self.to.write(json.dumps(question).encode() + b"\0")
        while True:
            message = self.message()
            if message.get("id") == self.number:
                if "error" in message:
                    raise SystemExit(f"FAILED: {method}: {message['error']['message']}")
                return message["result"]
            self.note(message)

    def note(self, event):
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Page.loadEventFired":
            self.loaded = True
        elif method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "assert"):
            self.errors.append(" ".join(str(one.get("value", one.get("description"))) for one in parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            entry = parameters["entry"]
            self.errors.append(f"{entry['text']} {entry.get('url', '')}")

    def open(self, address):
        self.loaded = False
        self.ask("Page.navigate", url=address)
        while not self.loaded:
            self.note(self.message())

    def evaluate(self, script):
        answer = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise SystemExit(f"FAILED: {answer['exceptionDetails']['exception']['description']}")
        return answer["result"].get("value")

    def look(self, size, night):
        theme = {"name": "prefers-color-scheme", "value": "dark" if night else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[theme])
        width, height = size
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=size == PHONE)

    def picture(self, file, size, height):
        clip = {"x": 0, "y": 0, "width": size[0], "height": height, "scale": 1}
        shot = self.ask("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))

    def end(self):
        self.to.close()
        self.fro.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Files, in silence: whoever goes on to the next page takes no more of the last one."""

    def log_message(self, *_):
        pass

    def copyfile(self, source, outputfile):
        try:
            super().copyfile(source, outputfile)
        except ConnectionError:
            self.close_connection = True


def main():
    program, book, pictures = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    pictures.mkdir(parents=True, exist_ok=True)
    apart = {"print.html", "404.html", "toc.html"}
    pages = sorted(str(file.relative_to(book)) for file in book.rglob("*.html"))
    pages = [page for page in pages if page not in apart]
    missing = PICTURED - set(pages)
    if missing:
        raise SystemExit(f"FAILED: no pages {sorted(missing)}")

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=book))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}/"

    wrong, ids, links = [], {}, []
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(program, profile)
        try:
            for night in (False, True):
                theme = "dark" if night else "light"
                for page in pages:
                    browser.errors = []
                    browser.look(PHONE, night)
                    browser.open(base + page)
                    script = EXAMINED.replace("LEAST", str(LEAST_CONTRAST)).replace("WIDTH", str(PHONE[0]))
                    found = browser.evaluate(script)
                    wrong += [f"{page}, {theme}: {what}" for what in found["wrong"]]
                    ids[page] = set(found["ids"])
                    links += [(page, link) for link in found["links"]]
                    if page in PICTURED:
                        name = page.removesuffix(".html").replace("/", "-")
                        browser.picture(pictures / f"{name}-phone-{theme}.png", PHONE, min(found["height"], 2400))
                        browser.look(DESK, night)
                        browser.open(base + page)
                        height = browser.evaluate("document.documentElement.scrollHeight")
                        browser.picture(pictures / f"{name}-desk-{theme}.png", DESK, min(height, 1800))
                    wrong += [f"{page}, {theme}: console: {error}" for error in browser.errors]
            browser.open(base + pages[0])
            if not browser.evaluate(SEARCHED):
                wrong.append("the search finds nothing")
        finally:
            browser.end()
    for page, link in sorted(set(links)):
        at, place = urllib.parse.urldefrag(link)
        if at.startswith(base):
            at = urllib.parse.unquote(at.removeprefix(base)) or "index.html"
            if at.endswith(".html") and (at not in ids or place and urllib.parse.unquote(place) not in ids[at]):
                wrong.append(f"{page}: nothing is at {at}#{place}" if place else f"{page}: nothing is at {at}")
    for what in wrong:
        print("FAILED:", what)
    print(f"{len(pages)} pages on a phone, by day and by night; {len(list(pictures.glob('*.png')))} pictures in {pictures}")
    sys.exit(bool(wrong))


main()
