# Generated from the table of the module: python tests/lint/faces.py
from squish_testing import BackendSuite as BackendSuite
from squish_testing import ByteCodecSuite as ByteCodecSuite
from squish_testing import CodecSuite as CodecSuite
from squish_testing import ContainerSuite as ContainerSuite
from squish_testing import CountingSource as CountingSource
from squish_testing import FamilySuite as FamilySuite
from squish_testing import Fingerprint as Fingerprint
from squish_testing import RefinementSuite as RefinementSuite
from squish_testing import SourceSuite as SourceSuite
from squish_testing import expect_error as expect_error
from squish_testing import memory_file as memory_file
from squish_testing import model_arrays as model_arrays
from squish_testing import mutant as mutant
from squish_testing import mutants as mutants
from squish_testing import truncations as truncations
from squish_testing import write_model as write_model
