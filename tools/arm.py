"""Run tests on aarch64, in an emulator: python tools/arm.py [--suite NAME] [--run COMMAND] [PYTEST-WORD...]

Compiles the native parts for aarch64, starts QEMU with Debian's arm64 kernel and packages, copies this
checkout into it, and runs there the tests that depend on the machine (TESTS), or those that are named.
Everything is emulated, the kernel too: that shows that vram is right, and nothing of how fast it is.

``--suite trixie`` is Debian 13 instead of 12: Python 3.13, glibc 2.41, programs that sign their return
addresses (pointer authentication), and a kernel with pages of 16 KiB.

It needs Debian's qemu-system-arm and gcc-aarch64-linux-gnu, apt and mke2fs, and no root. What it fetches and
builds stays below .build/arm; what is written in the emulated machine is gone with it.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import lzma
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from pythons import find

ROOT = Path(__file__).resolve().parent.parent
BUILT = ROOT / ".build" / "arm"
MACHINE, TARGET = "arm64", "aarch64-linux-gnu"
SUITES = {
    "bookworm": ("3.11", "linux-image-cloud-arm64"),
    "trixie": ("3.13", "linux-image-arm64-16k"),
}
"""Debian's: the version of Python of each, and the kernel that is taken."""

TESTS = (
    *("tests/reach", "tests/tracer", "tests/recording", "tests/ghosts", "tests/virtualgpu", "tests/host"),
    *("tests/reclaim", "tests/guard/test_buffer.py"),
)
NEEDED = ("qemu-system-aarch64", f"{TARGET}-gcc", "apt-get", "dpkg-deb", "mke2fs")
PACKAGES = (
    *("busybox-static", "python3", "python3-dev", "gcc", "g++", "make"),
    *("?essential", "procps", "mount", "strace"),
)
WHEELS = (
    *("msgspec", "nvidia-ml-py", "rich", "textual", "prometheus-client", "psutil", "numpy", "jsonschema"),
    *("pytest>=8", "pytest-xdist>=3", "hypothesis>=6", "typing_extensions"),
)
# What of these the kernel has as modules is loaded before there is a disk.
MODULES = (
    *("virtio", "virtio_ring", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci", "virtio_blk"),
    *("crc16", "crc32c_generic", "libcrc32c", "mbcache", "jbd2", "ext4"),
)

FIRST_PROGRAM = """\
#!/bin/busybox sh
busybox mount -t devtmpfs none /dev
for each in {modules}; do busybox insmod /$each.ko; done
while ! [ -e /dev/vda ]; do busybox sleep 0.1; done
busybox mount -t ext4 /dev/vda /root
busybox cp /begin /root/begin
exec busybox switch_root /root /begin
"""
BEGIN = """\
#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /dev/pts /dev/shm; mount -t devpts devpts /dev/pts; mount -t tmpfs shm /dev/shm
mount -t tmpfs tmp /tmp; mount -t tmpfs run /run; mount -t cgroup2 cgroup /sys/fs/cgroup
ln -sfn /proc/self/fd /dev/fd; hostname emulated; busybox ifconfig lo 127.0.0.1 up
mkdir -p /vram; tar -xf /dev/vdb -C /vram; cd /vram
{{ setsid -w sh /vram/.build/arm/command; echo $? >/run/answer; }} </dev/null 2>&1 | cat
echo "{mark}$(cat /run/answer)"
busybox poweroff -f
"""
MARK = "emulated: exit "


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--run", metavar="COMMAND", help="run this in the emulated machine instead of tests")
    parser.add_argument("--suite", choices=SUITES, default="bookworm", help="of Debian (default: bookworm)")
    parser.add_argument("--limit", type=int, default=14400, help="end it after so many seconds")
    args, words = parser.parse_known_args()
    missing = [name for name in NEEDED if not shutil.which(name)]
    if missing:
        packages = "qemu-system-arm gcc-aarch64-linux-gnu libc6-dev-arm64-cross e2fsprogs"
        print(f"missing: {' '.join(missing)}; on Debian: apt install {packages}", file=sys.stderr)
        return 1
    begun = time.monotonic()
    place = BUILT / args.suite
    prepare(place, args.suite)
    tests = words if any(not word.startswith("-") for word in words) else [*TESTS, *words]
    command = args.run or f"python3 -m pytest -q -p no:cacheprovider {shlex.join(tests)}"
    copy_checkout(place, command)
    print(f"made in {time.monotonic() - begun:.0f} s; everything from here on is emulated", flush=True)
    return emulate(place, args.limit)


def prepare(place: Path, suite: str) -> None:
    """The disk and the kernel, unless they are there already."""
    python, image = SUITES[suite]
    asked = repr((suite, image, PACKAGES, WHEELS))
    stamp, digest = place / "prepared", hashlib.sha256(asked.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return
    root = place / "root"
    shutil.rmtree(root, ignore_errors=True)
    unpack(fetch_packages(place / "apt", suite, image), root)
    install_wheels(root, python)
    kernel = next((root / "boot").glob("vmlinuz-*"))
    shutil.copyfile(kernel, place / "kernel")
    shutil.rmtree(place / "first", ignore_errors=True)
    (place / "first").mkdir()
    shutil.copyfile(root / "bin" / "busybox", place / "first" / "busybox")
    for file in (root / "lib" / "modules").rglob("*.ko*"):
        name, _, form = file.name.partition(".ko")
        if name in MODULES:
            content = lzma.decompress(file.read_bytes()) if form == ".xz" else file.read_bytes()
            (place / "first" / f"{name}.ko").write_bytes(content)
    shutil.rmtree(root / "lib" / "modules")
    disk = place / "disk"
    disk.unlink(missing_ok=True)
    run("mke2fs", "-q", "-t", "ext4", "-E", "root_owner=0:0", "-d", str(root), str(disk), "3G")
    shutil.rmtree(root)
    stamp.write_text(digest)


def fetch_packages(apt: Path, suite: str, image: str) -> list[Path]:
    """Debian's packages for the other machine, by an apt of their own that knows of no installed ones."""
    for folder in ("etc/apt.conf.d", "etc/preferences.d", "state/lists/partial", "cache/archives/partial"):
        (apt / folder).mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    signed = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
    source = f"deb {signed} http://deb.debian.org/debian {suite} main\n"
    (apt / "etc" / "sources.list").write_text(source)
    settings = {
        "Dir": f"{apt}/",
        "Dir::Etc": f"{apt}/etc/",
        "Dir::State": f"{apt}/state/",
        "Dir::State::status": f"{apt}/status",
        "Dir::Cache": f"{apt}/cache/",
        "APT::Architecture": MACHINE,
        "APT::Architectures": MACHINE,
        "APT::Install-Recommends": "false",
        "Acquire::Languages": "none",
    }
    lines = "".join(f'{name} "{value}";\n' for name, value in settings.items())
    (apt / "apt.conf").write_text(lines)
    environment = {**os.environ, "APT_CONFIG": str(apt / "apt.conf")}
    run("apt-get", "-qq", "update", env=environment)
    run("apt-get", "-qq", "-y", "--download-only", "install", image, *PACKAGES, env=environment)
    return sorted((apt / "cache" / "archives").glob("*.deb"))


def unpack(packages: list[Path], root: Path) -> None:
    """Their files; none of their scripts is run, so what those would have made is made here."""
    for name in ("bin", "sbin", "lib"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for package in packages:
        run("dpkg-deb", "-x", str(package), str(root))
    for name, made in (("cc", "gcc"), ("c++", "g++"), ("awk", "mawk")):
        (root / "usr" / "bin" / name).symlink_to(made)
    if not (root / "bin" / "sh").exists():
        (root / "bin" / "sh").symlink_to("bash")
    for name in ("passwd", "group"):
        shutil.copyfile(root / "usr" / "share" / "base-passwd" / f"{name}.master", root / "etc" / name)
    (root / "etc" / "hosts").write_text("127.0.0.1 localhost emulated\n")


def install_wheels(root: Path, python: str) -> None:
    site = root / "usr" / "local" / "lib" / f"python{python}" / "dist-packages"
    platforms = [f"--platform=manylinux{each}_aarch64" for each in ("_2_17", "2014", "_2_28")]
    pip = [sys.executable, "-m", "pip", "-qq", "install", f"--target={site}", f"--python-version={python}"]
    run(*pip, "--only-binary=:all:", "--no-compile", *platforms, *WHEELS)
    if same := find(python):  # its bytecode is the same, and it is much faster
        library = root / "usr" / "lib" / f"python{python}"
        compiling = [same, "-m", "compileall", "-qq", "--invalidation-mode=unchecked-hash"]
        subprocess.run([*compiling, "-s", str(root), str(site), str(library)], check=False)


def first_disk(place: Path) -> bytes:
    """What the kernel starts from: one program, and the modules for the disk that everything else is on."""
    kept = place / "first"
    found = [name for name in MODULES if (kept / f"{name}.ko").exists()]
    files = {f"{name}.ko": (kept / f"{name}.ko").read_bytes() for name in found}
    files["init"] = FIRST_PROGRAM.format(modules=" ".join(found)).encode()
    files["begin"] = BEGIN.format(mark=MARK).encode()
    files["bin/busybox"] = (kept / "busybox").read_bytes()
    folders = dict.fromkeys(("bin", "dev", "root"))
    entries = (_entry(name, content) for name, content in {**folders, **files}.items())
    return b"".join(entries) + _entry("TRAILER!!!", b"")


def _entry(name: str, content: bytes | None) -> bytes:
    """One of cpio's "newc" format: thirteen numbers, the name, the content; each padded. Source: cpio(5)."""
    mode, data = (0o40755, b"") if content is None else (0o100755, content)
    numbers = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08x" % number for number in numbers) + name.encode() + b"\0"
    return head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4)


def copy_checkout(place: Path, command: str) -> None:
    """This checkout as git sees it, with the libraries for the other machine, and what shall be run there."""
    package = BUILT / "package"
    run(sys.executable, str(ROOT / "native" / "build.py"), "--target", TARGET, "--into", str(package))
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    (place / "command").write_text(f"export PYTHONPATH=/vram/src\n{command}\n")
    with tarfile.open(place / "checkout", "w") as archive:
        for name in filter(None, os.fsdecode(listed).split("\0")):
            if (ROOT / name).exists():
                archive.add(ROOT / name, name)
        for library in package.rglob("*.so*"):
            if not library.name.startswith("."):
                archive.add(library, f"src/vram/{library.relative_to(package)}")
        archive.add(place / "command", ".build/arm/command")


def emulate(place: Path, limit_s: int) -> int:
    """Start it, show what it prints, and return what the command in it returned."""
    (place / "initrd").write_bytes(gzip.compress(first_disk(place), 1))
    # Signatures by QEMU's own quick method. With lpa2, QEMU 7.2 does not start kernels of Linux 6.12.
    processor = "max,pauth-impdef=on,lpa2=off"
    machine = ["qemu-system-aarch64", "-M", "virt", "-cpu", processor, "-smp", "2", "-m", "2G"]
    screen = ["-nographic", "-nodefaults", "-no-reboot", "-serial", "stdio"]
    kernel = ["-kernel", str(place / "kernel"), "-initrd", str(place / "initrd")]
    disks = [
        word
        for name, more in (("disk", "snapshot=on"), ("checkout", "readonly=on"))
        for word in ("-drive", f"file={place / name},format=raw,if=virtio,{more}")
    ]
    words = ["-append", "console=ttyAMA0 quiet loglevel=1 nosoftlockup rdinit=/init"]
    with subprocess.Popen(
        ["timeout", str(limit_s), *machine, *screen, *kernel, *words, *disks],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: os.nice(19),
    ) as emulator:
        assert emulator.stdout is not None
        said = b""
        while part := os.read(emulator.stdout.fileno(), 4096):
            said = (said + part)[-500:]
            print(part.decode(errors="replace").replace("\r", ""), end="", flush=True)
    _, mark, answer = said.rpartition(MARK.encode())
    return int(answer.split()[0]) if mark else 1


def run(*command: str, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, stdout=subprocess.DEVNULL, env=env)
    if done.returncode:
        sys.exit(f"tools/arm.py: this failed: {shlex.join(command)}")


if __name__ == "__main__":
    sys.exit(main())
