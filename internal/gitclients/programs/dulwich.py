import os
import sys

import dulwich
from dulwich import client, porcelain
from dulwich.repo import Repo

to = sys.argv[1]
repo = None
print("Dulwich", ".".join(map(str, dulwich.__version__)), flush=True)
for url in sys.stdin:
    url = url.strip()
    try:
        if repo is None:
            porcelain.clone(url, to, bare=True, errstream=open(os.devnull, "wb")).close()
            repo = Repo(to)
        else:
            remote, path = client.get_transport_and_path(url)
            for name, commit in remote.fetch(path, repo).refs.items():
                if name.startswith(b"refs/heads/"):
                    repo.refs[name] = commit
        print("ok", repo.refs.as_dict().get(b"refs/heads/main", b"").decode(), flush=True)
    except Exception as error:
        print("error", repr(error), flush=True)
