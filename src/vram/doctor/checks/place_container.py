"""place.container  Are we in a container, and was it given the GPUs?

What is looked at
-----------------
Our control group, the files that runtimes leave, what they mount, and the sockets of runtimes that
run here.

What it means
-------------
A container has the GPUs, libraries and rights that its runtime gave it, and nothing else. One that
sees the host's kernel module and none of its libraries was started without GPUs.

What to do
----------
Start it with GPUs (`docker run --gpus all`, `podman run --device nvidia.com/gpu=all`, a resource limit
`nvidia.com/gpu` in Kubernetes), with the NVIDIA container toolkit on the host.
"""

from __future__ import annotations

from vram.doctor.answers import Answer, ok
from vram.doctor.sight import Sight
from vram.model.doctor import Topic, Verb
from vram.model.surroundings import Container

ID = "place.container"
TOPIC: Topic = "place"
VERBS: tuple[Verb, ...] = ("why", "who", "check", "free", "park", "borrow")
OPTIONAL = False

_START = {
    "podman": "podman run --device nvidia.com/gpu=all …",
    "docker": "docker run --gpus all …",
}


def judge(sight: Sight) -> Answer:
    inside, here = sight.premises.container, sight.premises.runtimes
    others = (f"runs here: {', '.join(here)}",) if here else ()
    if inside is None:
        return ok("no container" + (f" ({', '.join(here)} run here)" if here else ""), *others)
    seen = f"in {_named(inside)}"
    if sight.premises.driver.module_version and not sight.gpus and not sight.virtual:
        return Answer(
            state="missing",
            seen=f"{seen}, which was given no GPU",
            details=(inside.evidence, *others),
            means=f"The host has a driver; this container was given {_withheld(sight)}.",
            fix="Start the container with GPUs, by a runtime with the NVIDIA container toolkit.",
            command="" if inside.pod else _START.get(inside.runtime or "docker", ""),
        )
    return ok(seen, inside.evidence, *others)


def _named(inside: Container) -> str:
    kind = f"a {inside.runtime} container" if inside.runtime else "a container"
    identity = f" {inside.identity[:12]}" if inside.identity else ""
    return kind + identity + (" of a Kubernetes pod" if inside.pod else "")


def _withheld(sight: Sight) -> str:
    if sight.premises.nodes:
        return "not all that leads to it"
    if sight.lacks_library:
        return "neither its libraries nor its devices"
    return "its libraries, and not its devices"
