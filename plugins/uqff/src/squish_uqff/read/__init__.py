"""Both generations of UQFF, from bytes to layers."""
