"""Data sets of the examples.

A file is looked for, in this order, in the folder that the environment variable
PYMC_SGMCMC_DATA names, in `examples/data`, and in `../shared/data` beside the repository; last
it is downloaded from its public home if the package `pooch` is installed (it is in '.[docs]').
"""

import gzip
import hashlib
import io
import json
import os
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.io
from deformed_digits import DeformedDigits

HERE = Path(__file__).resolve().parent
LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
GITHUB = "https://raw.githubusercontent.com/"
POSTERIORDB = GITHUB + "stan-dev/posteriordb/master/posterior_database/"
PRODLDA = GITHUB + "sophieburkhardt/dirichlet-vae-topic-models/master/data/20news/"
MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"

SHA256 = {
    "a9a/a9a.gz": "b301f3e87350539f3ebc751d07b4691a8c66f0bf38c1d179c86bbf5e2d9623b2",
    "a9a/a9a.t.gz": "af250ea3a89aab35a35782783488bcac86960ee38f05a3b1cdf896969a1f6152",
    "logistic_small/australian.libsvm": (
        "615e24252961b52e297f9b70942f166631ab412ad9060ba98bf41b1e027be607"
    ),
    "logistic_small/pima-indians-diabetes.data": (
        "33e704cdafa8769a75728e4658dcce5bc1da1ce36174603687fe545f46e39394"
    ),
    "logistic_small/caravan_ticdata2000.txt.gz": (
        "4017cfae6e4f6dc5522e795ffd363b6b88235ed5bf0ff1c5b0d71a09e2035090"
    ),
    "posteriordb/data/diamonds.json.zip": (
        "127d44a642f954b707bec2d82725e168d57a412d59487708794d4a17097f26ba"
    ),
    "posteriordb/data/eight_schools.json.zip": (
        "8e37cc01fe05b0e1779255e9bd386261f3d61daf7f75f02f72f38cdc9750531c"
    ),
    "posteriordb/data/gp_pois_regr.json.zip": (
        "9aaaa9d5694b74e2aefa6d0bd2f0a48637fcb4d455a74b33985e58154f285da9"
    ),
    "posteriordb/data/kidiq.json.zip": (
        "16d341a99ec8178231eab660d8fda084a44145f6a241daf35276d0192d13b92d"
    ),
    "posteriordb/data/low_dim_gauss_mix.json.zip": (
        "9b5ea284321417a7816b0426a0c96788a6824e6ceb4ec4ecd89493779720b8f9"
    ),
    "posteriordb/data/nes1980.json.zip": (
        "f2ebcdf394c82d3bcef169d311f43db88ae893159aff013d7d83b3af046f45d2"
    ),
    "posteriordb/data/radon_mn.json.zip": (
        "70e5bacffb71955f1fc327f7c491b6bc59b09f40673830da306f1f9f9eb02bc0"
    ),
    "posteriordb/data/sblrc.json.zip": (
        "81990278b8762ac79244afcd470861560c7b28e34e411ce6da814e6f632a1b81"
    ),
    "posteriordb/data/wells_data.json.zip": (
        "0ecd7efe3e64c63d849c562e61658fe322509942a882bc515176e016cc57c969"
    ),
    "posteriordb/reference_draws/diamonds-diamonds.json.zip": (
        "2745f4857ceb358ff6c692ba1dd1fd9d01cf8bc5ac456ae87e3c957fd51c4aae"
    ),
    "posteriordb/reference_draws/eight_schools-eight_schools_noncentered.json.zip": (
        "0858641e630c877103dba2b78beaf6bc1f39435fc43d2894c4dff5d609c7a264"
    ),
    "posteriordb/reference_draws/gp_pois_regr-gp_regr.json.zip": (
        "df89f5011d9518b06c95a631c258ce03f4818b78deb40ed069cfd1d70074c8bb"
    ),
    "posteriordb/reference_draws/kidiq-kidscore_interaction.json.zip": (
        "acac3c394dfeb65ced6f14ddf20b5a5c075d7a80ae663d1d71f904c16d207065"
    ),
    "posteriordb/reference_draws/kidiq-kidscore_momhsiq.json.zip": (
        "ba684f6687803c0aac94df2e352e8a7d18c458bc635088be64ccc0e8fb16dfe4"
    ),
    "posteriordb/reference_draws/kidiq-kidscore_momiq.json.zip": (
        "ee5deb23bf2dad804393c682b308da720825f9b099c37d774526c3a5a590e8d7"
    ),
    "posteriordb/reference_draws/low_dim_gauss_mix-low_dim_gauss_mix.json.zip": (
        "422de750b20aef29c7b86f6bfa88dd9759050b6ffeb3588c004d6a4861c1e776"
    ),
    "posteriordb/reference_draws/nes1980-nes.json.zip": (
        "cb531c8457ba9cf82b95e3f750dc710329e11adb8a6f065d3b3cf8e9794c7316"
    ),
    "posteriordb/reference_draws/sblrc-blr.json.zip": (
        "44f876cf35a038fcd1fd13fb19bbadf04b4308618ad41390050ae8b014a4592d"
    ),
    "text/kos/doc_word_count.tsv.gz": (
        "00e1422b6d6aa341f17c6e542955bb3083c3e37d0223ffaeed61031749b55455"
    ),
    "text/reuters/reuters.ldac": "4bfe5b21ed263334ddf7af56f7b38632f6ccae7d9441c8b56071167841e71b5e",
    "text/nips/nips_train.ldac.gz": (
        "a20ec6b60fbc256a551fff0045f1977e5301896625e06221fc3afa15d426f06d"
    ),
    "text/nips/nips_test.ldac.gz": (
        "d251bb7631db3199e310d478f5112b88e1da2517170b83a4f4d5b7642674610b"
    ),
    "text/nips/nips_vocab_7605.txt": (
        "ff325a74f68ef1cc1767af1acc9d65e6770b6cc29842bdf7737a59bf0e1e9edc"
    ),
    "text/20news/train.feat.gz": (
        "073a5890a6c851901634e9f9b1b936181628790a063d3c37acf94b011ad58329"
    ),
    "text/20news/test.feat.gz": (
        "02855c6ba4b45190d8d654e4b74a0686de6c0a77ec065de37d709fe7693bf07c"
    ),
    "text/20news/vocab.new": "75594f361e317a8c8fafca9846e903143ff25bb57ac4207ff850ef4245eb94bb",
    "ocr_letters/letter.data.gz": (
        "4ef9522ffeaa68cad889ad8d02ad3fca411fe6a656546c236a183866157b3b34"
    ),
    "caltech101_silhouettes/caltech101_silhouettes_28_split1.mat": (
        "eb6735e8d84b1850fabc5590124aab1755e90c9fd28123585324398405e1e42a"
    ),
    "mnist/train-images-idx3-ubyte.gz": (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
    ),
    "mnist/t10k-images-idx3-ubyte.gz": (
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
    ),
    "mnist/train-labels-idx1-ubyte.gz": (
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
    ),
    "mnist/t10k-labels-idx1-ubyte.gz": (
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
    ),
    "movielens_1m/ratings_user_item_rating.csv.gz": (
        "9ae4b68b85fe21436d32a4acc894b6b6c4e83d355b918ff80dc5586b8aebf23a"
    ),
}
"""Digests of the files as they are shipped."""

UNPACKED_SHA256 = {
    "a9a/a9a.gz": "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
    "a9a/a9a.t.gz": "7d8c09f1120d9ff231d85caba98956906033f3c4d53e2b15ab7ef83710de6a76",
    "logistic_small/australian.libsvm": SHA256["logistic_small/australian.libsvm"],
    "logistic_small/caravan_ticdata2000.txt.gz": (
        "5d5bdca1be0b9a6c012b93a8c8104761201bd70f7e08764fa67f2cfb26243723"
    ),
    "text/kos/doc_word_count.tsv.gz": (
        "3a9657e488f01a3fe133bcf045aa34717740ef96b0cdab29ecc34a288a61aeb1"
    ),
    "text/reuters/reuters.ldac": SHA256["text/reuters/reuters.ldac"],
    "text/20news/train.feat.gz": "6c4b612d03bb54c68c923ae7b689398c4a7bd1046b0874332dfe0a0c42830143",
    "text/20news/test.feat.gz": "5e5beaff3c66affeb08aeefb69e40e3e1c52360cdad2df03e7df2ecb6b79fad0",
}
"""Digests of the text inside; the public home serves it without gzip."""

HOME = {
    "a9a/a9a.gz": LIBSVM + "a9a",
    "a9a/a9a.t.gz": LIBSVM + "a9a.t",
    "logistic_small/australian.libsvm": LIBSVM + "australian",
    "logistic_small/pima-indians-diabetes.data": (
        GITHUB + "justmarkham/scikit-learn-videos/master/data/pima-indians-diabetes.data"
    ),
    "logistic_small/caravan_ticdata2000.txt.gz": (
        GITHUB + "johaupt/GANbalanced/master/data/ticdata2000.txt"
    ),
    "text/kos/doc_word_count.tsv.gz": (
        GITHUB + "suxi1314/test_powergraph/master/"
        "sixty_second_test_of_daily_kos/daily_kos/tokens/doc_word_count.tsv"
    ),
    "text/reuters/reuters.ldac": GITHUB + "wbuntine/topic-models/master/data/ch.ldac",
    "text/20news/train.feat.gz": PRODLDA + "train.feat",
    "text/20news/test.feat.gz": PRODLDA + "test.feat",
    "text/20news/vocab.new": PRODLDA + "vocab.new",
    "ocr_letters/letter.data.gz": "https://ai.stanford.edu/~btaskar/ocr/letter.data.gz",
    "caltech101_silhouettes/caltech101_silhouettes_28_split1.mat": (
        "https://people.cs.umass.edu/~marlin/data/caltech101_silhouettes_28_split1.mat"
    ),
    "mnist/train-images-idx3-ubyte.gz": MNIST + "train-images-idx3-ubyte.gz",
    "mnist/t10k-images-idx3-ubyte.gz": MNIST + "t10k-images-idx3-ubyte.gz",
    "mnist/train-labels-idx1-ubyte.gz": MNIST + "train-labels-idx1-ubyte.gz",
    "mnist/t10k-labels-idx1-ubyte.gz": MNIST + "t10k-labels-idx1-ubyte.gz",
}
HOME |= {
    name: POSTERIORDB
    + name.replace("posteriordb/data", "data/data").replace(
        "posteriordb/reference_draws", "reference_posteriors/draws/draws"
    )
    for name in SHA256
    if name.startswith("posteriordb/")
}
"""Public homes; a file that is not listed was made from another and must be in a folder."""


def _folders() -> list[Path]:
    chosen = os.environ.get("PYMC_SGMCMC_DATA")
    folders = [Path(chosen)] if chosen else []
    return [*folders, HERE / "data", HERE.parent.parent / "shared" / "data"]


def find(name: str) -> Path:
    """Return the path of a data file such as ``"a9a/a9a.gz"``, downloading it if necessary."""
    for folder in _folders():
        path = folder / name
        if path.is_file():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if digest != SHA256[name]:
                raise ValueError(f"{path} is damaged or another version: its sha256 is {digest}.")
            return path
    looked = ", ".join(str(folder / name) for folder in _folders())
    if name not in HOME:
        raise FileNotFoundError(
            f"No data file at {looked}, and it cannot be downloaded in this form. Set "
            f"PYMC_SGMCMC_DATA to a folder that holds '{name}'."
        )
    try:
        import pooch
    except ImportError:
        raise FileNotFoundError(
            f"No data file at {looked}. Restore examples/data from the repository, or set "
            f"PYMC_SGMCMC_DATA to a folder that holds '{name}', or install pooch "
            f"(pip install pooch, which '.[docs]' contains) to download {HOME[name]}."
        ) from None
    try:
        digest = UNPACKED_SHA256.get(name, SHA256[name])
        return Path(pooch.retrieve(HOME[name], known_hash=f"sha256:{digest}"))
    except Exception as error:
        raise FileNotFoundError(
            f"No data file at {looked}, and the download of {HOME[name]} failed: {error}. Set "
            f"PYMC_SGMCMC_DATA to a folder that holds '{name}'."
        ) from error


def read_text(path: Path) -> str:
    """Text of a file, gzipped or not."""
    raw = path.read_bytes()
    return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode()


def read_libsvm(path: Path, n_features: int) -> tuple[np.ndarray, np.ndarray]:
    """Dense features (rows, n_features) and 0/1 labels of a LIBSVM text file, gzipped or not."""
    lines = read_text(path).splitlines()
    X = np.zeros((len(lines), n_features))
    y = np.zeros(len(lines), dtype=np.int64)
    for row, line in enumerate(lines):
        label, *entries = line.split()
        y[row] = float(label) > 0
        for entry in entries:
            column, value = entry.split(":")
            X[row, int(column) - 1] = float(value)
    return X, y


def load_a9a() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Adult income, binary features as they are: X_train, y_train, X_test, y_test.

    Shapes (32561, 123), (32561,), (16281, 123), (16281,); labels 0 and 1.
    """
    train = read_libsvm(find("a9a/a9a.gz"), 123)
    test = read_libsvm(find("a9a/a9a.t.gz"), 123)
    return *train, *test


def load_australian() -> tuple[np.ndarray, np.ndarray]:
    """Australian credit: X (690, 14) with columns of mean 0 and sd 1, y (690,) of 0 and 1."""
    X, y = read_libsvm(find("logistic_small/australian.libsvm"), 14)
    return (X - X.mean(axis=0)) / X.std(axis=0), y


def load_pima() -> tuple[np.ndarray, np.ndarray]:
    """Diabetes: X (768, 8) with columns of mean 0 and sd 1, y (768,) of 0 and 1."""
    text = read_text(find("logistic_small/pima-indians-diabetes.data"))
    table = np.loadtxt(io.StringIO(text), delimiter=",")
    X = table[:, :-1]
    return (X - X.mean(axis=0)) / X.std(axis=0), table[:, -1].astype(np.int64)


def load_caravan() -> tuple[np.ndarray, np.ndarray]:
    """Caravan insurance: X (5822, 85) with columns of mean 0 and sd 1, y (5822,) of 0 and 1."""
    text = read_text(find("logistic_small/caravan_ticdata2000.txt.gz"))
    table = np.loadtxt(io.StringIO(text), delimiter="\t")
    X = table[:, :-1]
    return (X - X.mean(axis=0)) / X.std(axis=0), table[:, -1].astype(np.int64)


def _read_posteriordb(name: str):
    with zipfile.ZipFile(find(f"posteriordb/{name}.json.zip")) as archive:
        return json.loads(archive.read(archive.namelist()[0]))


def load_posteriordb(name: str) -> dict[str, np.ndarray]:
    """Data of a posterior of posteriordb (Magnusson et al.), such as ``"diamonds"``, by name."""
    return {key: np.asarray(value) for key, value in _read_posteriordb(f"data/{name}").items()}


def load_reference_draws(name: str) -> dict[str, np.ndarray]:
    """Draws from a posterior such as ``"diamonds-diamonds"``: 10 chains of 1000, by variable.

    Shapes (10, 1000) or (10, 1000, elements).
    """
    chains = _read_posteriordb(f"reference_draws/{name}")
    elements: dict[str, list] = {}
    for parameter in chains[0]:  # "sigma", or "beta[1]", "beta[2]", ...
        draws = np.array([chain[parameter] for chain in chains])
        elements.setdefault(parameter.partition("[")[0], []).append(draws)
    return {
        name: np.stack(parts, axis=-1) if f"{name}[1]" in chains[0] else parts[0]
        for name, parts in elements.items()
    }


def load_20_newsgroups() -> tuple[list, list, list[str]]:
    """Bags of words (words from 0, counts) of the training and test documents, and the words.

    20news-bydate as cleaned by Srivastava and Sutton (2017): 11258 and 7487 documents that are not
    empty, 1994 words.
    """
    words = [line.split()[0] for line in read_text(find("text/20news/vocab.new")).splitlines()[1:]]
    parts = []
    for name in ("train", "test"):
        lines = read_text(find(f"text/20news/{name}.feat.gz")).splitlines()
        documents = [
            np.array([entry.split(":") for entry in line.split()[1:]], dtype=np.int64).T
            for line in lines
            if ":" in line
        ]
        # numbered from 1, and the first is the mark of the end, which never occurs
        parts.append([(word - 2, count) for word, count in documents])
    return *parts, words


def read_ldac(path: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """Words (from 0) and counts of each document of an LDA-C text file, gzipped or not."""
    documents = []
    for line in read_text(path).splitlines():
        entries = [entry.split(":") for entry in line.split()[1:]]
        words, counts = np.array(entries, dtype=np.int64).T
        documents.append((words, counts))
    return documents


def load_documents(name: str) -> tuple[list[tuple[np.ndarray, np.ndarray]], int]:
    """Documents as bags of words (words from 0, counts), and the size of the vocabulary.

    ``"kos"``: 3430 blog entries, 6906 words, 467714 tokens. ``"nips"``: 1500 papers, 7605
    words, 1870706 tokens. ``"reuters"``: 395 news items, 4258 words, 84010 tokens.
    """
    if name == "kos":
        text = read_text(find("text/kos/doc_word_count.tsv.gz"))
        triples = np.array(text.split(), dtype=np.int64).reshape(-1, 3)
        starts = np.flatnonzero(np.diff(triples[:, 0])) + 1
        return [(t[:, 1], t[:, 2]) for t in np.split(triples, starts)], 6906
    if name == "nips":
        train = read_ldac(find("text/nips/nips_train.ldac.gz"))
        return train + read_ldac(find("text/nips/nips_test.ldac.gz")), 7605
    if name == "reuters":
        return read_ldac(find("text/reuters/reuters.ldac")), 4258
    raise ValueError(f"No corpus '{name}': it must be 'kos', 'nips' or 'reuters'.")


def load_vocabulary(name: str) -> list[str]:
    """Words of a corpus in the order of their numbers; of ``"nips"``."""
    if name != "nips":
        raise ValueError(f"No vocabulary of '{name}': it must be 'nips'.")
    return read_text(find("text/nips/nips_vocab_7605.txt")).split()


class Images(NamedTuple):
    """Binary images as rows of 0 and 1 (uint8)."""

    train: np.ndarray | DeformedDigits
    valid: np.ndarray
    test: np.ndarray
    shape: tuple[int, int]
    """Height and width of an image: rows are read line by line."""


def load_ocr_letters() -> Images:
    """Handwritten letters, 16 x 8: 32152, 10000 and 10000 of them at random.

    The numbers are those of Larochelle's split, the split itself is another.
    """
    text = gzip.decompress(find("ocr_letters/letter.data.gz").read_bytes()).decode()
    x = np.array([line.split("\t")[6:134] for line in text.splitlines()], dtype=np.uint8)
    x = x[np.random.default_rng(0).permutation(len(x))]
    return Images(x[:32152], x[32152:42152], x[42152:], (16, 8))


def load_caltech_silhouettes() -> Images:
    """Silhouettes of Caltech-101, 28 x 28, objects 1: 4100, 2264 and 2307 of them."""
    path = find("caltech101_silhouettes/caltech101_silhouettes_28_split1.mat")
    parts = scipy.io.loadmat(path)
    # in the file the objects are 0 and images are stored column by column
    pictures = [
        1 - parts[f"{name}_data"].reshape(-1, 28, 28).transpose(0, 2, 1).reshape(-1, 784)
        for name in ("train", "val", "test")
    ]
    return Images(*pictures, (28, 28))


def read_mnist(name: str) -> np.ndarray:
    """Grey images of MNIST, 28 x 28, uint8: "train" or "t10k"."""
    raw = gzip.decompress(find(f"mnist/{name}-images-idx3-ubyte.gz").read_bytes())
    return np.frombuffer(raw, dtype=np.uint8, offset=16).reshape(-1, 784)


def load_mnist_binarised() -> Images:
    """MNIST digits, 28 x 28, each pixel 1 with probability intensity / 255, drawn once."""
    rng = np.random.default_rng(0)

    def read(name: str) -> np.ndarray:
        grey = read_mnist(name)
        return (rng.random(grey.shape) < grey / 255).astype(np.uint8)

    train = read("train")
    return Images(train[:50_000], train[50_000:], read("t10k"), (28, 28))


def load_deformed_mnist() -> Images:
    """8.1 million deformed training digits of MNIST, made as they are read; MNIST's other ones."""
    images = load_mnist_binarised()
    return images._replace(train=DeformedDigits(read_mnist("train")[:50_000], 8_100_000))


class Digits(NamedTuple):
    """Grey images as rows of numbers from 0 to 1 (float32), and their classes from 0 to 9."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def load_mnist() -> Digits:
    """MNIST digits, 28 x 28: 60000 to learn from and 10000 test images, in their own order."""

    def read(name: str) -> tuple[np.ndarray, np.ndarray]:
        images = gzip.decompress(find(f"mnist/{name}-images-idx3-ubyte.gz").read_bytes())
        labels = gzip.decompress(find(f"mnist/{name}-labels-idx1-ubyte.gz").read_bytes())
        grey = np.frombuffer(images, dtype=np.uint8, offset=16).reshape(-1, 784)
        return grey.astype(np.float32) / 255, np.frombuffer(labels, np.uint8, offset=8).astype(int)

    return Digits(*read("train"), *read("t10k"))


def load_movielens() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """MovieLens-1M: user (0 to 6039), movie (0 to 3705) and rating (1 to 5) of 1000209 ratings.

    Only rated movies are numbered. GroupLens does not allow the file to be passed on.
    """
    text = read_text(find("movielens_1m/ratings_user_item_rating.csv.gz"))
    table = np.loadtxt(io.StringIO(text), delimiter=",", skiprows=1, dtype=np.int64)
    return table[:, 0] - 1, table[:, 1] - 1, table[:, 2]
