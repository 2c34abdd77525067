"""Files and folders of strangers: nothing in them runs, nothing grows without limit, nothing is written elsewhere."""

import importlib
import io
import os
import pickle
import stat
import struct
import subprocess
import sys
import tracemalloc
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, Image
from torch import nn

import tm_bandit
from tests.extractors.networks import TinyClip, save_script
from tests.fuzz.junk import soon
from tests.report.results import make_result
from tm_bandit import OptimisticIS, ReferenceStatistics
from tm_bandit._files import atomic_write
from tm_bandit._weights_file import read_weights
from tm_bandit.callbacks import BanditCheckpoint
from tm_bandit.cli import main
from tm_bandit.data import ImageFolder, open_source
from tm_bandit.data.images import decode_image
from tm_bandit.errors import ArmError, InputError, WeightsError
from tm_bandit.extractors import resolve
from tm_bandit.extractors.weights import bundled_inception, load_tensors


class Trap(nn.Module):
    """As TorchScript, this writes a file as soon as it is loaded."""

    def __init__(self, mark):
        super().__init__()
        self.mark = mark
        self.weight = nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight.sum()

    @torch.jit.export
    def __getstate__(self):
        return (self.mark, self.weight, self.training)

    @torch.jit.export
    def __setstate__(self, state: tuple[str, torch.Tensor, bool]) -> None:
        self.mark = state[0]
        self.weight = state[1]
        self.training = state[2]
        torch.save(torch.zeros(1), self.mark)


def trapped(path, mark):
    """Save a TorchScript archive whose ``__setstate__`` leaves a mark."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(Trap(str(mark))).save(str(path))


@pytest.mark.parametrize("feature", [2048, "clip-vit-b-32", "dinov2-vit-s-14", "vgg16"])
def test_a_torchscript_archive_does_not_run(tmp_path, feature):
    mark, path = tmp_path / "was-run", tmp_path / "weights.pt"
    trapped(path, mark)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.load(str(path))
    assert mark.exists()  # the trap works
    mark.unlink()
    with pytest.raises(WeightsError):
        resolve(feature, weights_path=path)
    assert not mark.exists()


def test_tensors_of_a_torchscript_archive_are_those_that_torch_loads(tmp_path):
    torch.manual_seed(0)
    path = tmp_path / "clip.pt"
    save_script(TinyClip(), torch.zeros(1, 3, 32, 32), path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = torch.jit.load(str(path)).state_dict()
    ours = load_tensors(path)
    assert set(ours) == set(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.skipif(bundled_inception() is None, reason="needs the extra `real`")
def test_the_bundled_network_is_read_without_being_run():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = torch.jit.load(str(bundled_inception()), map_location="cpu").state_dict()
    ours = load_tensors(bundled_inception())
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.slow
def test_a_module_in_the_current_folder_does_not_stand_in_for_an_installed_one(tmp_path):
    (tmp_path / "tabnanny.py").write_text("open('was-run', 'w').close()\n")
    (tmp_path / "sampling.py").write_text("import tabnanny\nnumber = tabnanny.verbose\n")
    code = (
        "import os, sys; sys.path.remove(''); from tm_bandit.cli import main;"
        "code = main(['stats', 'x.npy', '-o', 'r.npz', '--feature', 'sampling:number']);"
        "assert os.getcwd() not in sys.path; sys.exit(code)"
    )
    np.save(tmp_path / "x.npy", np.zeros((4, 8, 8, 3), np.uint8))
    # Python itself puts the folder first when a program is started in other ways than by its command.
    root = str(Path(tm_bandit.__file__).parents[1])
    here = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path[1:]])}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=here, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "to be a module or function" in done.stderr  # `sampling` itself was found
    assert not (tmp_path / "was-run").exists()


SAMPLING = """
import os, torch
assert "PYTHONSAFEPATH" not in os.environ  # what a sampler starts finds things as before
def near(n): return torch.randn(n, 4)
def far(n): return torch.randn(n, 4) + 9
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 cannot be told")
def test_a_worker_does_not_look_into_the_current_folder_first(tmp_path):
    for name in ("json", "multiprocessing", "signal"):  # the server, and the process that tracks its semaphores
        (tmp_path / f"{name}.py").write_text("open('was-run', 'w').close()\n")
    (tmp_path / "sampling.py").write_text(SAMPLING)
    ReferenceStatistics(torch.zeros(4), torch.eye(4), 1000).save(tmp_path / "real.npz")
    code = (
        "import sys; sys.path.remove(''); from tm_bandit.cli import main\n"
        "if __name__ == '__main__': sys.exit(main(sys.argv[1:]))"
    )
    words = ["select", "--reference", "real.npz", "sampling:near", "sampling:far", "--feature", "none"]
    words += ["--budget", "40", "--workers", "1"]
    root = str(Path(tm_bandit.__file__).parents[1])
    here = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path[1:]])}
    here.pop("PYTHONSAFEPATH", None)
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=tmp_path, env=here, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "likely best" in done.stdout
    assert not (tmp_path / "was-run").exists()


def test_no_command_looks_into_the_current_folder_without_being_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    seen = []

    class Watch:
        @staticmethod
        def find_spec(name, path=None, target=None):
            seen.append(str(tmp_path) in sys.path)

    monkeypatch.setattr(sys, "meta_path", [Watch, *sys.meta_path])
    importlib.import_module("tm_bandit.cli.show")
    monkeypatch.delitem(sys.modules, "tm_bandit.report.html")  # so that there is something left to import
    seen.clear()
    make_result().to_json("result.json")
    assert main(["report", "result.json", "--html", "page.html"]) == 0
    assert seen == [False] * len(seen) != []


def large_picture(path, side):
    """Write a PNG of ``side`` x ``side`` white pixels in a few kilobytes."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    packer, lines = zlib.compressobj(9), b"\0" + b"\xff" * (side // 8)
    data = b"".join(packer.compress(lines) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b""))


def test_a_small_file_that_unpacks_to_a_huge_picture_is_refused(tmp_path, capsys):
    (tmp_path / "pictures").mkdir()
    bomb = tmp_path / "pictures" / "bomb.png"
    large_picture(bomb, 8800)  # 77 megapixels: below what Pillow warns of
    assert bomb.stat().st_size < 50_000
    with pytest.raises(InputError, match="77,440,000 pixels"):
        decode_image(bomb)
    with pytest.raises(InputError, match="77,440,000 pixels"):
        open_source(tmp_path / "pictures")
    assert len(ImageFolder(tmp_path / "pictures", max_pixels=10**8)) == 1
    words = ["stats", str(tmp_path / "pictures"), "-o", str(tmp_path / "r.npz"), "--workers", "0", "--max-pixels"]
    assert main([*words, "1000"]) == 2
    assert "--max-pixels" in capsys.readouterr().err


def test_no_program_is_started_for_a_picture(tmp_path, monkeypatch):
    mark, interpreter = tmp_path / "was-run", tmp_path / "bin" / "gs"
    interpreter.parent.mkdir()
    interpreter.write_text(f"#!/bin/sh\ntouch {mark}\nexit 1\n")
    interpreter.chmod(0o755)
    monkeypatch.setenv("PATH", f"{interpreter.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None, raising=False)  # so that it is looked for anew
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n%%EOF\n")
    with pytest.raises(subprocess.CalledProcessError), Image.open(picture) as image:
        image.load()
    assert mark.exists()  # the trap works
    mark.unlink()
    with pytest.raises(InputError, match="not an image"):
        decode_image(picture)
    assert not mark.exists()


def test_a_picture_inside_a_picture_is_not_decoded(tmp_path):
    large_picture(tmp_path / "large.png", 8800)
    content = (tmp_path / "large.png").read_bytes()
    entry = struct.pack("<BBBBHHII", 16, 16, 0, 0, 1, 32, len(content), 22)  # says 16 x 16
    (tmp_path / "icon.png").write_bytes(struct.pack("<HHH", 0, 1, 1) + entry + content)
    with pytest.raises(InputError, match="not an image"):
        decode_image(tmp_path / "icon.png")


@pytest.mark.parametrize("key", ["..", ".", "a/..", "../a", "a/../../b", " ", ". ."])
def test_a_key_does_not_lead_out_of_the_log_folder(key):
    with pytest.raises(InputError, match="key"):
        BanditCheckpoint(metric=OptimisticIS("none"), budget=10, batch_size=5, key=key)


def test_a_replaced_file_keeps_its_permissions(tmp_path):
    secret = tmp_path / "secret.json"
    secret.write_text("old")
    secret.chmod(0o600)
    with atomic_write(secret) as temporary:
        assert stat.S_IMODE(temporary.stat().st_mode) == 0o600  # never readable by others, not even on the way
        temporary.write_text("new")
    assert (secret.read_text(), stat.S_IMODE(secret.stat().st_mode)) == ("new", 0o600)
    fresh, before = tmp_path / "fresh.json", os.umask(0o027)
    try:
        with atomic_write(fresh) as temporary:
            temporary.write_text("new")
    finally:
        os.umask(before)
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o640


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    real, link = tmp_path / "elsewhere" / "result.json", tmp_path / "latest.json"
    real.write_text("old")
    link.symlink_to(real)
    with atomic_write(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert [entry.name for entry in (tmp_path / "elsewhere").iterdir()] == ["result.json"]


def claims(shape, kind="<f8", content=b""):
    """Return a ``.npy`` file whose header claims more than follows."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})
    return file.getvalue() + content


def pack(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def test_a_small_file_does_not_fill_the_memory(tmp_path):
    side = 5800
    zeros = claims((side, side), content=bytes(8 * side**2))
    pack(tmp_path / "bomb.npz", **{"mu.npy": claims((side,), content=bytes(8 * side)), "sigma.npy": zeros})
    assert (tmp_path / "bomb.npz").stat().st_size < 400_000
    for read, options in ((ReferenceStatistics.load, {}), (open_source, {"key": "sigma"})):
        with pytest.raises(InputError, match="grows from"):
            read(tmp_path / "bomb.npz", **options)
    few = np.zeros((2000, 20))  # grows a thousandfold too, but to nothing that matters
    np.savez_compressed(tmp_path / "few.npz", few)
    assert len(open_source(tmp_path / "few.npz")) == 2000


def test_torch_s_files_are_not_unpacked(tmp_path):
    path = tmp_path / "weights.pt"
    torch.save({"state_dict": {"a": torch.zeros(9)}, "mu": torch.zeros(2), "sigma": torch.eye(2)}, path)
    with zipfile.ZipFile(path) as archive:
        members = {item: archive.read(item) for item in archive.namelist()}
    pack(path, **members)
    for read in (load_tensors, read_weights, ReferenceStatistics.load):
        with pytest.raises((ValueError, ArmError), match="is packed"):
            read(path)


def test_a_second_list_of_an_archive_hides_nothing(tmp_path):
    """Python finds the stored copies, whose list is the last; torch finds the packed ones, as the end points there."""
    path, packed, stored = tmp_path / "weights.pt", io.BytesIO(), io.BytesIO()
    torch.save({"mu": torch.zeros(2), "sigma": torch.eye(2)}, path)
    with zipfile.ZipFile(path) as archive:
        members = {item: archive.read(item) for item in archive.namelist()}
    pack(packed, **members)
    with zipfile.ZipFile(stored, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    end = packed.getvalue()[-22:]
    path.write_bytes(packed.getvalue()[:-22] + stored.getvalue()[:-22] + end)
    assert torch.equal(torch.load(path, weights_only=True)["sigma"], torch.eye(2))  # the trap works
    with zipfile.ZipFile(path) as archive:
        assert {item.compress_type for item in archive.infolist()} == {zipfile.ZIP_STORED}
    for read in (load_tensors, read_weights, ReferenceStatistics.load):
        with pytest.raises((ValueError, ArmError), match="more than one list"):
            read(path)


def test_a_tensor_that_repeats_its_numbers_without_end_is_refused(tmp_path):
    path = tmp_path / "weights.pt"
    torch.save({"mu": torch.zeros(1).expand(10**12), "sigma": torch.zeros(1, 1).expand(10**6, 10**6)}, path)
    for read in (ReferenceStatistics.load, load_tensors):
        with pytest.raises(ValueError, match="claims shape"):
            read(path)
    with pytest.raises(WeightsError, match="claims shape"):
        resolve(2048, weights_path=path)


def old_file(path, content):
    """Write a file of the format before zip, with this pickle and no numbers."""
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    begin = b"".join(pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, system))
    path.write_bytes(begin + b"\x80\x02" + content + b"." + pickle.dumps([], 2))


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def whole(value):
    return b"\x8a\x08" + struct.pack("<q", value)


def claimed(numel, shape):
    """Return the pickle of a tensor of floats whose storage has ``numel`` of them, as far as it says."""
    storage = (
        b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(str(numel)) + text("cpu") + whole(numel) + b"NtQ"
    )
    size = b"(" + b"".join(map(whole, shape)) + b"t"
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + whole(0) + size + size[:1] + whole(1) * len(shape) + b"t"
        b"\x89ccollections\nOrderedDict\n)RtR"
    )


@pytest.mark.parametrize("numel", [4, 400_000_000])  # the storage grows to what a tensor claims, or claims it itself
def test_a_tensor_without_numbers_does_not_fill_the_memory(tmp_path, numel):
    path = tmp_path / "weights.pt"
    old_file(path, b"}(" + text("mu") + claimed(numel, [400_000_000]) + text("sigma") + claimed(1, [1, 1]) + b"u")
    assert path.stat().st_size < 1000
    for read in (ReferenceStatistics.load, load_tensors):
        with pytest.raises(ValueError, match="claims shape"):
            read(path)
    parts = b"".join(text(name) + claimed(9, [90_000_000]) for name in "abc")  # each of them would do
    old_file(path, b"}(" + parts + b"u")
    with pytest.raises(ValueError, match="c claims shape"):
        load_tensors(path)


def test_an_array_without_numbers_does_not_fill_the_memory(tmp_path):
    made = np.zeros(1).__reduce__()[0]
    array = f"c{made.__module__}\n{made.__name__}\n(cnumpy\nndarray\n(".encode() + whole(2**25) + b"tU\1btR"
    old_file(tmp_path / "r.pt", b"}(" + text("mu") + array + text("sigma") + claimed(1, [1, 1]) + b"u")
    with pytest.raises(InputError, match="claims shape"):
        ReferenceStatistics.load(tmp_path / "r.pt")


@pytest.mark.parametrize("unknown", [b"", text("x") + b"cos\nsystem\n"])  # with it, torch itself refuses the file
def test_a_pickle_does_not_get_the_room_that_it_asks_for(tmp_path, unknown):
    content = b"Nr" + struct.pack("<I", 2**21) + b"0"  # remember this under number two million
    old_file(tmp_path / "weights.ckpt", content + b"}(" + text("a") + claimed(1, [1]) + unknown + b"u")
    script_of(tmp_path / "script.pt", content + MODULE + b"}b")
    tracemalloc.start()
    try:
        assert list(read_weights(tmp_path / "weights.ckpt")) == ["a"]
        assert load_tensors(tmp_path / "script.pt") == {}
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("function", [b"ctorch._utils\n_rebuild_tensor_v2\n", b"cos\nsystem\n"])
def test_no_patch_of_a_source_is_written(tmp_path, function):
    """Torch writes one beside a class whose source is not what a file says, if the class asks for it."""
    named = text("dump_patches") + b"\x88" + text("__name__") + text(str(tmp_path / "was-run"))
    source = b"(" + text("module") + b"h\0" + text("file.py") + text("import os") + b"tQ"
    old_file(
        tmp_path / "old.ckpt",
        function + b"q\0(N}(" + named + b"utb0}(" + text("a") + b"cos\nsystem\n" + text("b") + source + b"u",
    )
    with pytest.raises(ArmError):
        read_weights(tmp_path / "old.ckpt")
    assert [entry.name for entry in tmp_path.iterdir()] == ["old.ckpt"]


@pytest.mark.parametrize("feature", [2048, "vgg16", "clip-vit-b-32"])
@pytest.mark.parametrize("content", [b"}" + text("a") + b"K\1Qs", b"}", b"", b"(" * 9])
def test_odd_pickles_are_no_weights(tmp_path, feature, content):
    old_file(tmp_path / "old.pt", content)
    with pytest.raises(WeightsError):
        resolve(feature, weights_path=tmp_path / "old.pt")


def script_of(path, content):
    """Write a TorchScript archive with a pickle of modules; they are called ``0``, ``1`` and so on in its memo."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("s/data.pkl", b"\x80\x02" + content + b".")
        archive.writestr("s/constants.pkl", b"\x80\x02).")


MODULE = b"c__torch__\nM\n)\x81"  # an object, whose parts follow


def test_modules_that_hold_each_other_end(tmp_path):
    path = tmp_path / "script.pt"
    doubled = (
        MODULE
        + b"}bq\0"
        + b"".join(b"0" + MODULE + b"}(X\1\0\0\0ah%cX\1\0\0\0bh%cubq%c" % (at - 1, at - 1, at) for at in range(1, 60))
    )  # each holds the one before it twice
    for content in (doubled, MODULE + b"q\0}X\1\0\0\0ah\0sb"):  # and one that holds itself
        script_of(path, content)
        with soon(), pytest.raises(WeightsError, match="hold each other"):
            resolve(2048, weights_path=path)
    script_of(path, b"K\1")
    with pytest.raises(WeightsError, match="holds no module"):
        resolve(2048, weights_path=path)


def test_tensors_of_a_torchscript_archive_are_not_unpacked(tmp_path):
    path = tmp_path / "script.pt"
    save_script(nn.Linear(2, 3), torch.zeros(1, 2), path)
    with zipfile.ZipFile(path) as archive:
        members = {item: archive.read(item) for item in archive.namelist()}
    pack(path, **members)
    with pytest.raises(ValueError, match="is packed"):
        load_tensors(path)


class Blank(nn.Module):
    """Has a tensor without numbers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("nothing", torch.zeros(0))
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.filterwarnings("ignore")
def test_a_tensor_without_numbers_is_read(tmp_path):
    torch.jit.script(Blank()).save(str(tmp_path / "script.pt"))
    assert {name: value.tolist() for name, value in load_tensors(tmp_path / "script.pt").items()} == {
        "weight": [1.0, 1.0],
        "nothing": [],
    }


@pytest.mark.parametrize("packed", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("shape", [(10**12,), (10**6, 10**6), (10**12, 3)])
def test_a_header_that_claims_too_much_is_refused(tmp_path, packed, shape):
    path = tmp_path / "claims.npz"
    with zipfile.ZipFile(path, "w", packed) as archive:
        for name in ("mu", "sigma", "arr_0"):
            archive.writestr(f"{name}.npy", claims(shape))
    with pytest.raises(InputError, match=r"claims\.npz"):
        ReferenceStatistics.load(path)
    with pytest.raises(InputError, match=r"claims\.npz"):
        open_source(path)
    single = tmp_path / "claims.npy"
    single.write_bytes(claims(shape))
    with pytest.raises(InputError, match=r"claims\.npy"):
        open_source(single)


@pytest.mark.parametrize(("shape", "kind"), [((10**6, 0), "<f8"), ((10**6,), "|S0")])
def test_a_million_empty_entries_are_no_number_of_samples(tmp_path, shape, kind):
    np.savez(tmp_path / "r.npz", mu=np.zeros(2), sigma=np.eye(2))
    with zipfile.ZipFile(tmp_path / "r.npz", "a") as archive:
        archive.writestr("num_samples.npy", claims(shape, kind))
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="num_samples"):
            ReferenceStatistics.load(tmp_path / "r.npz")
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()
