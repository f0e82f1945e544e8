"""Policy protocols: bytes of the peers, and round trips with the real openpi client and with ours.

The real client runs in an environment of its own, since it needs an older NumPy; where it cannot be installed, its rows
say so.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from harness import row
from instep.core.world import Array, Channel, Observation, Spec, vector
from instep.policy.openpi import PolicyServer, pack, unpack

TOKEN = secrets.token_urlsafe(16)
STATE = np.array([1, 2], "<f4")
GOLDEN: dict[str, tuple[dict[str, Any], Any, str]] = {
    "openpi array": (
        {"state": STATE, "prompt": "hi"},
        "openpi",
        "82a5737461746584c40b5f5f6e6461727261795f5fc3c40464617461c4080000803f00000040c4056474797065a33c6634c40573686170"
        "659102a670726f6d7074a26869",
    ),
    "openpi image": (
        {"i": np.array([[[0, 1], [2, 3]]], "u1")},
        "openpi",
        "81a16984c40b5f5f6e6461727261795f5fc3c40464617461c40400010203c4056474797065a37c7531c405736861706593010202",
    ),
    "GR00T N1.5 and N1.6": (
        {"state": STATE},
        "as_npy",
        "81a5737461746582b15f5f6e6461727261795f636c6173735f5fc3a661735f6e7079c488934e554d5059010076007b27646573637227"
        "3a20273c6634272c2027666f727472616e5f6f72646572273a2046616c73652c20277368617065273a2028322c292c207d"
        + "20" * 60
        + "0a0000803f00000040",
    ),
    "GR00T N1.7": (
        {"state": STATE},
        "msgpack-numpy",
        "81a5737461746585c4026e64c3c40474797065a33c6634c4046b696e64c400c40573686170659102c40464617461c408"
        "0000803f00000040",
    ),
}
SPEC = Spec(
    0.02,
    vector(["a", "b"], "rad"),
    vector(["a", "b"], "rad/s"),
    vector(["a", "b"], "rad"),
    {
        "observation.state": vector(["a", "b"], "rad"),
        "observation.images.top": Channel(("height", "width", "channels"), "", (8, 8, 3), "uint8"),
    },
)
CLIENT = """
import json, sys
import numpy as np
from openpi_client import msgpack_numpy
from openpi_client.websocket_client_policy import WebsocketClientPolicy
address, token, golden = sys.argv[1:4]
host, port = address.removeprefix("ws://").split(":")
policy = WebsocketClientPolicy(host=host, port=int(port), api_key=token)
rng = np.random.default_rng(0)
off = 0.0
for _ in range(50):
    state = rng.normal(size=2).astype(np.float32)
    image = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
    reply = policy.infer({"state": state, "images": {"top": image}})
    wanted = state[None] + np.arange(3)[:, None] + image.mean()
    off = max(off, float(np.abs(reply["actions"] - wanted).max()))
same = msgpack_numpy.packb({"state": np.array([1, 2], "<f4"), "prompt": "hi"}).hex() == golden
print(json.dumps({"off": off, "same": same, "expects": sorted(policy.get_server_metadata())}))
"""


class Echo:
    """Answers with what it saw, three steps ahead."""

    def reset(self, seed: int = 0) -> None:
        """Nothing to forget."""

    def infer(self, observation: Observation) -> Array:
        """The state, counted up, and the mean of the image."""
        state = np.asarray(observation["observation.state"], float)
        mean = np.asarray(observation["observation.images.top"], float).mean(axis=(-3, -2, -1))
        return state[..., None, :] + np.arange(3)[:, None] + mean[..., None, None]


def run(out: Path, quick: bool = False) -> list[dict[str, Any]]:
    """Check and measure; one row per number."""
    return [*golden(), *real_client(out)]


def golden() -> list[dict[str, Any]]:
    """Bytes as the peers write them, both ways."""
    rows = []
    for name, (message, layout, expected) in GOLDEN.items():
        back = unpack(bytes.fromhex(expected))
        same = pack(message, layout).hex() == expected and all(np.array_equal(back[k], v) for k, v in message.items())
        rows.append(row(f"{name}: bytes equal to the peer's, written and read", float(same), at_least=1.0))
    return rows


def real_client(out: Path) -> list[dict[str, Any]]:
    """The package openpi-client, in an environment of its own, asks our server."""
    python = installed(out / "openpi-client")
    if python is None:
        print("openpi-client cannot be installed here; its rows are left out")
        return [row("openpi-client in its own environment: could not be installed", float("nan"))]
    with PolicyServer(Echo(), SPEC, token=TOKEN) as server:
        words = [str(python), "-c", CLIENT, server.address, TOKEN, GOLDEN["openpi array"][2]]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        print(done.stderr)
        return [row("openpi-client: round trips answered", 0.0, at_least=1.0)]
    found = json.loads(done.stdout.splitlines()[-1])
    return [
        row("openpi-client: its bytes equal to ours", float(found["same"]), at_least=1.0),
        row("openpi-client: largest error of 50 round trips", found["off"], "rad", at_most=1e-4),
    ]


def installed(folder: Path) -> Path | None:
    """A Python with openpi-client; None where it cannot be had."""
    python = folder / "bin" / "python"
    # typing_extensions is used by the package and not among what it asks for.
    wanted = ["openpi-client", "typing_extensions"]
    steps = ([sys.executable, "-m", "venv", str(folder)], [str(python), "-m", "pip", "install", "-q", *wanted])
    for words in steps:
        if subprocess.run(words, capture_output=True, timeout=300, check=False).returncode:
            return None
    return python
