"""Nodes with a network of their own on one machine: a namespace each, joined by a bridge whose ports can be taken down.

Without TLS, programs of this project talk on loopback addresses only, and that rule stays as it is here: inside these
namespaces the loopback *device* gives up 127.0.0.0/8 but for 127.0.0.1, and 127.77.0.0/24 is routed over the bridge
(route_localnet). Nothing of it can be reached from outside, and the machine's own loopback is not touched.
"""
import os
import shutil
import socket
import subprocess

HUB = "hub"
HUB_ADDRESS = "127.77.0.254"
HUB_PORT = 7070  # the namespace has no other user


def ip(*argv):
    done = subprocess.run(["ip", *argv], capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


class Namespaces:
    """One namespace for each node, and one for the coordinator and its clients."""
    can_partition = True

    def __init__(self, nodes):
        self.prefix = f"ckptsoak{os.getpid()}-"
        self.addresses = {HUB: HUB_ADDRESS} | {node: f"127.77.0.{i}" for i, node in enumerate(nodes, 1)}
        self.server = f"{HUB_ADDRESS}:{HUB_PORT}"
        self.down = set()
        remove_leftovers()
        try:
            self.make(nodes)
        except OSError:
            self.close()
            raise

    def make(self, nodes):
        self.make_namespace(HUB)
        ip("-n", self.prefix + HUB, "link", "add", "br0", "type", "bridge")
        self.bring_up(HUB, "br0")
        for i, node in enumerate(nodes, 1):
            self.make_namespace(node)
            ip("-n", self.prefix + HUB, "link", "add", f"port{i}", "type", "veth", "peer", "name", "eth0", "netns", self.prefix + node)
            ip("-n", self.prefix + HUB, "link", "set", f"port{i}", "master", "br0", "up")
            self.bring_up(node, "eth0")
        self.ports = {node: f"port{i}" for i, node in enumerate(nodes, 1)}

    def make_namespace(self, name):
        ip("netns", "add", self.prefix + name)
        ip("-n", self.prefix + name, "link", "set", "lo", "up")
        ip("-n", self.prefix + name, "address", "del", "127.0.0.1/8", "dev", "lo")
        ip("-n", self.prefix + name, "address", "add", "127.0.0.1/32", "dev", "lo")
        self.route_localnet(name, "all")

    def route_localnet(self, name, device):
        path = f"/proc/sys/net/ipv4/conf/{device}/route_localnet"
        done = subprocess.run([*self.enter(name), "sh", "-c", f"echo 1 > {path}"], capture_output=True, text=True)
        if done.returncode != 0:
            raise OSError(f"route_localnet in {name}: {done.stderr.strip()}")

    def bring_up(self, name, device):
        self.route_localnet(name, device)
        ip("-n", self.prefix + name, "address", "add", f"{self.addresses[name]}/24", "dev", device, "scope", "global")
        ip("-n", self.prefix + name, "link", "set", device, "up")

    def enter(self, name):
        """What to put before a command so that it runs there, as the same process."""
        return ["nsenter", f"--net=/run/netns/{self.prefix}{name}", "--"]

    def link(self, node, up):
        ip("-n", self.prefix + HUB, "link", "set", self.ports[node], "up" if up else "down")
        (self.down.discard if up else self.down.add)(node)

    def close(self):
        for name in self.addresses:
            subprocess.run(["ip", "netns", "del", self.prefix + name], capture_output=True)


class PlainLoopback:
    """What is left without root: all nodes share this machine's loopback, and no link can be taken down."""
    can_partition = False
    down = frozenset()

    def __init__(self, nodes):
        self.addresses = {name: "127.0.0.1" for name in (HUB, *nodes)}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.server = f"127.0.0.1:{probe.getsockname()[1]}"

    def enter(self, name):
        return []

    def close(self):
        pass


def remove_leftovers():
    """Namespaces of soaks that were killed themselves."""
    for line in ip("netns", "list").splitlines():
        name = line.split()[0] if line.split() else ""
        if name.startswith("ckptsoak") and not os.path.exists(f"/proc/{name[len('ckptsoak'):].split('-')[0]}"):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def make_network(nodes):
    """Returns the network, and why it is not made of namespaces (empty if it is)."""
    if os.geteuid() != 0:
        return PlainLoopback(nodes), "only root may make network namespaces"
    if shutil.which("ip") is None or shutil.which("nsenter") is None:
        return PlainLoopback(nodes), "ip (iproute2) or nsenter (util-linux) is not installed"
    try:
        return Namespaces(nodes), ""
    except OSError as error:
        return PlainLoopback(nodes), str(error)
