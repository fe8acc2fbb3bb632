// Command gogit is a Git client that uses go-git. Its argument is the folder of a bare clone. For each URL
// that it reads, it clones or fetches and prints a line: see package gitclients. It is a separate module,
// because the product does not need go-git's client.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
)

func main() {
	fmt.Println("go-git", version())
	c := clone{dir: os.Args[1]}
	for urls := bufio.NewScanner(os.Stdin); urls.Scan(); {
		if err := c.fetch(urls.Text()); err != nil {
			fmt.Printf("error %q\n", err)
			continue
		}
		fmt.Println("ok", c.main())
	}
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/go-git/go-git/v5" {
			return module.Version
		}
	}
	return ""
}

type clone struct {
	dir  string
	repo *git.Repository // nil at first
}

func (c *clone) fetch(url string) (err error) {
	if c.repo == nil {
		c.repo, err = git.PlainClone(c.dir, true, &git.CloneOptions{URL: url})
		return err
	}
	err = c.repo.Fetch(&git.FetchOptions{
		RemoteURL: url, RefSpecs: []config.RefSpec{"+refs/heads/*:refs/heads/*"}, Force: true,
	})
	if errors.Is(err, git.NoErrAlreadyUpToDate) {
		return nil
	}
	return err
}

// main returns the commit of the branch main; "" if there is none.
func (c *clone) main() string {
	ref, err := c.repo.Reference(plumbing.NewBranchReferenceName("main"), true)
	if err != nil {
		return ""
	}
	return ref.Hash().String()
}
