"""Three parties with addresses of their own, one cut off and healed: run by test_deployment.py.

Runs as root of a user namespace of its own (``unshare -rnm``), so it changes nothing outside.
"""

import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from test_deployment import counted, deploy, facts

BRIDGE = "10.77.0.1"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def networks() -> None:
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True, capture_output=True)
    ip("link", "set", "lo", "up")
    ip("link", "add", "bridge0", "type", "bridge")
    ip("addr", "add", f"{BRIDGE}/24", "dev", "bridge0")
    ip("link", "set", "bridge0", "up")
    for p in range(3):
        ip("netns", "add", f"p{p}")
        ip("link", "add", f"v{p}", "type", "veth", "peer", "name", "eth0", "netns", f"p{p}")
        ip("link", "set", f"v{p}", "master", "bridge0", "up")
        ip("-n", f"p{p}", "addr", "add", f"10.77.0.1{p}/24", "dev", "eth0")
        ip("-n", f"p{p}", "link", "set", "eth0", "up")
        ip("-n", f"p{p}", "link", "set", "lo", "up")


def main(folder: Path) -> None:
    networks()
    parties = {f"party-{p}": f"10.77.0.1{p}" for p in range(3)}
    others = dict.fromkeys(("registry", "coordinator", "shuffler", "server"), BRIDGE)
    within = {f"party-{p}": ["ip", "netns", "exec", f"p{p}"] for p in range(3)}
    deployment, sums = deploy(folder, facts(), hosts={**parties, **others}, within=within)
    with deployment:
        deployment.wait(lambda said: said["round"] >= 1 or said["phase"] == "frozen", 60)
        ip("link", "set", "v1", "down")
        time.sleep(3.0)
        if deployment.status("coordinator")["counts"]["done"]:
            raise SystemExit("the session went on without a party")
        ip("link", "set", "v1", "up")
        deployment.wait(lambda said: said["done"], 60)
    np.testing.assert_array_equal(counted(deployment), sums)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
