import sys

import pygit2

to = sys.argv[1]
repo = None
print("pygit2", pygit2.__version__, "libgit2", pygit2.LIBGIT2_VERSION, flush=True)
for url in sys.stdin:
    url = url.strip()
    try:
        if repo is None:
            repo = pygit2.clone_repository(url, to, bare=True)
        else:
            repo.remotes.set_url("origin", url)
            repo.remotes["origin"].fetch(["+refs/heads/*:refs/heads/*"])
        main = repo.references.get("refs/heads/main")
        print("ok", main.target if main else "", flush=True)
    except Exception as error:
        print("error", repr(error), flush=True)
