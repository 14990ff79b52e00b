"""Two key files of workers, for tests alone: `edgespec worker --new-key` made them."""

from __future__ import annotations

from pathlib import Path

KEYS = (
    """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgzxo338ZT3ePLHotN
p4l4iY/7InaVdf9f8fhhrPwLnTShRANCAAQNBcBO7wU/8n6RLTPDLQbEIfTcfrjt
BUcfv0nCl/oWyZMDAoTJUUT22o74Hkny6HurssEuUo2uIXSotwTLolRX
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBNjCB3KADAgECAhR5f80lduzWI35K+4+6UECS3L6rzzAKBggqhkjOPQQDAjAa
MRgwFgYDVQQDDA9lZGdlc3BlYy13b3JrZXIwIBcNMDAwMTAxMDAwMDAwWhgPOTk5
OTEyMzEyMzU5NTlaMBoxGDAWBgNVBAMMD2VkZ2VzcGVjLXdvcmtlcjBZMBMGByqG
SM49AgEGCCqGSM49AwEHA0IABA0FwE7vBT/yfpEtM8MtBsQh9Nx+uO0FRx+/ScKX
+hbJkwMChMlRRPbajvgeSfLoe6uywS5Sja4hdKi3BMuiVFcwCgYIKoZIzj0EAwID
SQAwRgIhAMXH+TDQ5u9Jgypj4OGeaJTH2zqJh/DWMAZLDiv13HC9AiEA6YVA9rYr
CRKYajKrFiXaW4spABH7Pu4OeTJDoUVN/hQ=
-----END CERTIFICATE-----
""",
    """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgc59WQlOmOHWK2o6F
1zFhxx8iIUkO51wAnvZhjnPRYCyhRANCAASUPas5arc7IPxsuJhN87T+CqN/u/hl
Jp7x1pKVcdpVcAYM1znoYXQBqQ1fC+7SEZwe0IbEEGTFE5thsSD3km8L
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBNTCB3KADAgECAhQIczZZpSZ3w2IR4zkpfFJVYKO5EzAKBggqhkjOPQQDAjAa
MRgwFgYDVQQDDA9lZGdlc3BlYy13b3JrZXIwIBcNMDAwMTAxMDAwMDAwWhgPOTk5
OTEyMzEyMzU5NTlaMBoxGDAWBgNVBAMMD2VkZ2VzcGVjLXdvcmtlcjBZMBMGByqG
SM49AgEGCCqGSM49AwEHA0IABJQ9qzlqtzsg/Gy4mE3ztP4Ko3+7+GUmnvHWkpVx
2lVwBgzXOehhdAGpDV8L7tIRnB7QhsQQZMUTm2GxIPeSbwswCgYIKoZIzj0EAwID
SAAwRQIgCPYHkcVbw/+Q9nPIiFGhwU+tt4xsC+r/l7EZOzEqr50CIQC89p51sWDw
F24X3gIHPaH5rv6yB8gYzBRqS/N09kxf1g==
-----END CERTIFICATE-----
""",
)


def write_key(folder: Path, number: int = 0) -> Path:
    """One of the keys as a file that only this user can read."""
    path = folder / f"worker-{number}.key"
    path.write_text(KEYS[number], encoding="ascii")
    path.chmod(0o600)
    return path
