"""A site that is not as it should be: `python -m tests.servers.strange_site BEHAVIOUR SITE.yaml`, with NEORL_HOME set.

`lies` multiplies what it tells of its change; `late=N:SECONDS` sleeps in round N; `dies=N` is killed in round N; several
are joined by commas.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from configs.federation import Site
from configs.home import Home
from configs.load import load_yaml
from flows.cli.operations.federation import _participant
from tasks.adapters.federation.network import HELLO, Message
from tasks.federation.serving import serve
from tasks.federation.words import question_of


def main() -> None:
    """Serve like any site, but for what is asked here."""
    asked = dict(part.partition("=")[::2] for part in sys.argv[1].split(","))
    file, home = Path(sys.argv[2]), Home.locate()
    terms = load_yaml(file, Site)
    participant = _participant(terms, home)

    def answer(message: Message) -> Message:
        found = participant.answer(message)
        number = 0 if message.text == HELLO else question_of(message).number
        finishing = message.text != HELLO and question_of(message).kind == "finish"
        if number and not finishing and asked.get("dies") == str(number):
            os.kill(os.getpid(), signal.SIGKILL)
        late, _, seconds = asked.get("late", "0:0").partition(":")
        if number and not finishing and late == str(number):
            time.sleep(float(seconds))
        if "lies" in asked:
            lied = {
                name: -1000 * array if name.startswith("change/") else array for name, array in found.arrays.items()
            }
            return found._replace(arrays=lied)
        return found

    serve(
        terms, file.parent, home.folder("federations", "supernode"), answer, lambda line: print(line, file=sys.stderr)
    )


if __name__ == "__main__":
    main()
