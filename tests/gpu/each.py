"""Runs the tests of a program in several processes, each test by itself, so that one that ends its process ends no other:
each.py PROGRAM PROCESSES SECONDS [ARGUMENT..]

One after the other in a process, since MLX's CUDA backend records graphs that calls of other threads spoil. Prints each test
that did not pass with the end of what it said, and a line of counts; leaves with 1 if there is one, or no test.
"""

import subprocess
import sys
import threading
import time

program, processes, seconds, *arguments = sys.argv[1:]
end = time.monotonic() + float(seconds)
listed = subprocess.run([program, "--list", *arguments], capture_output=True, text=True, check=True).stdout
names = [line.removesuffix(": test") for line in listed.splitlines() if line.endswith(": test")]
results, told, lock = {}, {}, threading.Lock()


def next_names(count):
    with lock:
        taken, names[:] = names[:count], names[count:]
        return taken


def run(wanted):
    """Runs tests, and gives those that are left when the process ended early."""
    left = max(end - time.monotonic(), 0)
    try:
        command = [program, "--exact", "--test-threads=1", *wanted]
        process = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=left)
        out, failure = process.stdout, f"ended the process ({process.returncode}): {process.stderr[-300:]}"
    except subprocess.TimeoutExpired as late:
        out, failure = (late.stdout or b"").decode(errors="replace"), "had no time left"
    begun = None
    for line in out.splitlines():
        if line.startswith("test ") and " ... " in line:
            name, result = line[5:].split(" ... ", 1)
            begun = name.removesuffix(" - should panic")
            if result in ("ok", "FAILED", "ignored") or result.startswith("ignored,"):
                results[begun] = result.split(",")[0]
    for name in wanted:
        part = out.split(f"---- {name} stdout ----\n")
        if len(part) > 1:
            told[name] = part[1].split("\n---- ")[0].split("\nfailures:")[0].strip()[:600]
    missing = [name for name in wanted if name not in results]
    if missing:
        first = begun if begun in missing else missing[0]
        results[first], told[first] = "late" if failure.endswith("left") else "CRASHED", failure
        missing.remove(first)
    return missing


def work():
    while time.monotonic() < end and (wanted := next_names(batch)):
        while wanted:
            wanted = run(wanted)


total = len(names)
# A process takes seconds to begin.
batch = max(1, min(8, total // (2 * int(processes))))
threads = [threading.Thread(target=work) for _ in range(int(processes))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for name, result in sorted(results.items()):
    if result not in ("ok", "ignored"):
        print(f"{result} {name}: {told.get(name, '')}\n")
counted = {result: list(results.values()).count(result) for result in sorted(set(results.values()))}
print(f"{program.rsplit('/', 1)[-1]}: {total} tests, {counted}, {total - len(results)} not begun")
sys.exit(total == 0 or counted.get("ok", 0) + counted.get("ignored", 0) != total)
