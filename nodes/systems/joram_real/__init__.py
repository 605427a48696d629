"""OW2 JORAM itself, beside ``joram``, our broker after the document about it."""
