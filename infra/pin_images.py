"""Append the registry's digest to each image tag in the manifests (`make pin-images`).

If a registry does not answer, nothing is changed.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlencode

from flows.services.processes import LOOPBACK

INFRA = Path(__file__).parent
NAMED = re.compile(
    r"^(?P<before>\s*(?:FROM|image:) )(?P<name>[\w./:-]+):(?P<tag>[\w.-]+)(?P<digest>@sha256:\w{64})?", re.M
)
OURS = "neorl"
HUB = ("docker.io", "registry-1.docker.io")
MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
"""Media types of image manifests. An image for several architectures has an index, whose digest is pinned."""
TIME_LIMIT = 30.0


def main(folder: Path = INFRA) -> int:
    """Pin every image that NeoRL does not build. Return exit code 0, even if a registry does not answer."""
    files = [folder / "Dockerfile", folder / "compose.yaml", *sorted((folder / "kubernetes").rglob("*.yaml"))]
    texts = {path: path.read_text() for path in files}
    images = {(found["name"], found["tag"]) for text in texts.values() for found in NAMED.finditer(text)}
    digests = {}
    for name, tag in sorted(images):
        if name != OURS:
            try:
                digests[name, tag] = digest(name, tag)
            except (OSError, ValueError, LookupError) as error:
                print(f"not run: the registry of {name}:{tag} does not answer ({error}); nothing was changed")
                return 0

    def pinned(found: re.Match[str]) -> str:
        known = digests.get((found["name"], found["tag"]))
        return f"{found['before']}{found['name']}:{found['tag']}@{known}" if known else found[0]

    for path, text in texts.items():
        path.write_text(NAMED.sub(pinned, text))
    for (name, tag), known in digests.items():
        print(f"{name}:{tag}@{known}")
    return 0


def digest(name: str, tag: str) -> str:
    """Compute the digest of an image from its registry's manifest.

    Raises:
        OSError: if the registry does not answer or rejects the request.
        ValueError: if the answer is not a manifest.
    """
    first, _, rest = name.partition("/")
    elsewhere = rest and ("." in first or ":" in first)
    registry, repository = (first, rest) if elsewhere else (HUB[0], name if rest else f"library/{name}")
    host = HUB[1] if registry == HUB[0] else registry
    # Like Docker, use no TLS for a registry on this machine.
    scheme = "http" if host.partition(":")[0] in LOOPBACK else "https"
    url = f"{scheme}://{host}/v2/{repository}/manifests/{tag}"
    try:
        body = get(url, "")
    except urllib.error.HTTPError as error:
        with error:
            challenge = dict(re.findall(r'(\w+)="([^"]*)"', error.headers.get("WWW-Authenticate", "")))
        if error.code != 401 or "realm" not in challenge:
            raise
        query = urlencode({"service": challenge.get("service", ""), "scope": f"repository:{repository}:pull"})
        token = json.loads(get(f"{challenge['realm']}?{query}", ""))
        body = get(url, token.get("token") or token["access_token"])
    if json.loads(body).get("schemaVersion") != 2:
        raise ValueError(f"{url} is not an image manifest")
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def get(url: str, token: str) -> bytes:
    """Return the body of an HTTP answer."""
    headers = {"Accept": ", ".join(MANIFESTS), **({"Authorization": f"Bearer {token}"} if token else {})}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIME_LIMIT) as answer:
        return bytes(answer.read())


if __name__ == "__main__":
    sys.exit(main())
