"""A rank: takes memory, says so on the descriptor that $TOLD names, and ends when its input does."""

import os
import sys

import driver
import protocol

driver.context()
driver.alloc(512 * protocol.MIB)
os.write(int(os.environ["TOLD"]), b".")
os.close(int(os.environ["TOLD"]))
sys.stdin.read()
