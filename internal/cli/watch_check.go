package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/config"
	"lockstep/internal/credential"
	"lockstep/internal/git/wire"
	"lockstep/internal/redisx"
	"lockstep/internal/term"
	"lockstep/internal/watch"
)

// remoteTimeout bounds the check of a watch's remote.
const remoteTimeout = 10 * time.Second

// warnOfRemote asks the remote of a new watch for its refs, and warns if it does not list them. It is no more
// than a warning: the workers may reach other hosts than this machine, and the repository may be created
// later.
func warnOfRemote(ctx context.Context, std term.Streams, cfg config.Config, w watch.Watch) {
	err := checkRemote(ctx, std, cfg, w)
	if err == nil || ctx.Err() != nil {
		return
	}
	problem := "could not be reached from this machine"
	switch events.ClassOf(err) {
	case events.ClassNotFound:
		problem = "was not found"
	case events.ClassAuth:
		problem = "refused the credential"
		if w.Credential == "" {
			problem = "needs a credential"
		}
	}
	fmt.Fprintf(std.Stderr, "lockstep: warning: the remote %s: %s; the watch is kept\n", problem,
		term.Clean(strings.Join(strings.Fields(err.Error()), " ")))
}

// checkRemote lists the refs of the watch's remote. It returns nil if the credential or the settings for it
// are not on this machine.
func checkRemote(ctx context.Context, std term.Streams, cfg config.Config, w watch.Watch) error {
	ctx, cancel := context.WithTimeout(ctx, remoteTimeout)
	defer cancel()
	network, err := wire.NewNetwork(app.VolumeConfig(cfg).Net)
	if err != nil {
		return nil
	}
	defer network.Close()
	credentials := credential.NewStore(cfg.Credentials, std.Variable).WithTransport(network.Transport())
	asked := network.Asked(w.URL)
	auth, err := credentials.Resolve(ctx, w.Credential, asked)
	for events.DispositionOf(err) == events.Contention && redisx.Pause(ctx, time.Second) { // a token is being minted
		auth, err = credentials.Resolve(ctx, w.Credential, asked)
	}
	if err != nil {
		return nil
	}
	session, err := network.DialAndList(ctx, w.URL, auth, false, wire.Limits{Timeout: remoteTimeout}, "refs/heads/")
	switch {
	case err == nil:
		session.Close()
	case events.ClassOf(err) == events.ClassConfig: // such as an unknown SSH host key
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer within %v", remoteTimeout)
	}
	return err
}
