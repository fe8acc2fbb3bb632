package cli

import "flag"

var update = flag.Bool("update", false, "write docs/cli.md and the pictures of the dashboard")
