import pytest
from page_reader import read_page
from shown_runs import document_of, gpu_runs, write_runs

from ampsweep.report.html import html


@pytest.fixture
def write(tmp_path):
    return lambda entries: write_runs(entries, tmp_path)


@pytest.fixture(scope="session")
def gpu_document(tmp_path_factory):
    """The comparison of `gpu_runs`; tests only read it."""
    directory = tmp_path_factory.mktemp("gpu")
    return document_of(write_runs(gpu_runs(), directory), directory)


@pytest.fixture(scope="session")
def gpu_page(gpu_document):
    return read_page(html(gpu_document))
