"""The cluster's certificate authority, its certificates, and kubeconfigs that carry them."""

import json
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path

import host

_DAYS = "3650"


@dataclass(frozen=True)
class Authority:
    """A certificate authority of this cluster alone.

    Attributes:
        folder: Where keys (`NAME.key`) and certificates (`NAME.crt`) lie.
    """

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> "Authority":
        """Makes the authority and the key that signs service account tokens."""
        folder.mkdir(mode=0o700)
        authority = cls(folder)
        authority._make_key("ca")
        host.run(
            *("openssl", "req", "-x509", "-new", "-sha256", "-days", _DAYS),
            *("-subj", "/CN=specschedule-cluster-ca"),
            *("-addext", "keyUsage=critical,digitalSignature,keyCertSign"),
            *("-key", folder / "ca.key", "-out", folder / "ca.crt"),
        )
        host.run("openssl", "genrsa", "-out", folder / "service-accounts.key", "2048")
        host.run(
            *("openssl", "rsa", "-pubout", "-in", folder / "service-accounts.key"),
            *("-out", folder / "service-accounts.pub"),
        )
        return authority

    def issue(
        self,
        name: str,
        common_name: str,
        organisation: str = "",
        alternative_names: tuple[str, ...] = (),
    ) -> None:
        """Issues a certificate for a server and a client.

        Args:
            name: The name of the files.
            common_name: Kubernetes' user name.
            organisation: Kubernetes' group, if any.
            alternative_names: What a server is reached by, such as `IP:127.0.0.1`.
        """
        self._make_key(name)
        subject = (f"/O={organisation}" if organisation else "") + f"/CN={common_name}"
        request = host.run(
            *("openssl", "req", "-new", "-subj", subject, "-key", self.folder / f"{name}.key")
        )
        extensions = self.folder / f"{name}.extensions"
        extensions.write_text(
            "keyUsage=critical,digitalSignature\nextendedKeyUsage=serverAuth,clientAuth\n"
            + (f"subjectAltName={','.join(alternative_names)}\n" if alternative_names else "")
        )
        host.run(
            *("openssl", "x509", "-req", "-sha256", "-days", _DAYS, "-extfile", extensions),
            *("-CA", self.folder / "ca.crt", "-CAkey", self.folder / "ca.key"),
            *("-CAcreateserial", "-out", self.folder / f"{name}.crt"),
            input=request,
        )

    def kubeconfig(self, name: str, server: str) -> str:
        """A kubeconfig, with the certificates in it, for the user that `name` was issued for."""

        def data(file: str) -> str:
            return b64encode((self.folder / file).read_bytes()).decode()

        cluster = {"server": server, "certificate-authority-data": data("ca.crt")}
        user = {
            "client-certificate-data": data(f"{name}.crt"),
            "client-key-data": data(f"{name}.key"),
        }
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "specschedule", "cluster": cluster}],
                "users": [{"name": name, "user": user}],
                "contexts": [
                    {"name": "specschedule", "context": {"cluster": "specschedule", "user": name}}
                ],
                "current-context": "specschedule",
            },
            indent=2,
        )

    def _make_key(self, name: str) -> None:
        host.run(
            *("openssl", "ecparam", "-genkey", "-noout", "-name", "prime256v1"),
            *("-out", self.folder / f"{name}.key"),
        )
