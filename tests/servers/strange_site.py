"""A misbehaving site: `python -m tests.servers.strange_site BEHAVIOUR SITE.yaml`, with NEORL_HOME set.

`lies=N` multiplies the reported change in round N; `late=N:SECONDS` sleeps in round N; `dies=N` is killed in round N.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from configs.home import Home
from flows.cli.federate import participant_of, read_site
from tasks.federation.messages import Question, read_text
from tasks.federation.serving import serve
from tasks.federation.transport.network import HELLO, Message


def main() -> None:
    """Serve like a site, with the requested misbehaviour."""
    kind, _, when = sys.argv[1].partition("=")
    when, _, seconds = when.partition(":")
    file, home = Path(sys.argv[2]), Home.locate()
    terms = read_site(file)
    participant = participant_of(terms, home)

    def answer(message: Message) -> Message:
        reply = participant.answer(message)
        if message.text == HELLO or read_text(Question, message).kind != "round":
            return reply
        if str(read_text(Question, message).number) != when:
            return reply
        if kind == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "late":
            time.sleep(float(seconds))
        if kind == "lies":
            lie = {name: -1000 * array for name, array in reply.arrays.items() if name.startswith("change/")}
            return reply._replace(arrays={**reply.arrays, **lie})
        return reply

    with suppress(KeyboardInterrupt):
        serve(terms, file.parent, home.folder("federations", "supernode"), answer)


if __name__ == "__main__":
    main()
