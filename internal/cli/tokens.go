package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"lockstep/internal/access"
	"lockstep/internal/cells"
	"lockstep/internal/config"
	"lockstep/internal/operate"
	"lockstep/internal/term"
	"lockstep/internal/watch"
)

func newTokensCommand(std term.Streams) *cobra.Command {
	return newGroup("tokens", "Create, list or remove tokens with which apps read over HTTP",
		"A token of an app reads what the app watches, and nothing else, from processes with the role reader:\n"+
			"archives, files and listings. It is sent as a bearer token or as the password of HTTP Basic, over TLS\n"+
			"or from the same machine.",
		newTokensCreateCommand(std), newTokensListCommand(std), newTokensRemoveCommand(std))
}

func newTokensCreateCommand(std term.Streams) *cobra.Command {
	var app string
	var out term.Output
	cmd := withFlags(&cobra.Command{
		Use:   "create",
		Short: "Create a token for an app and print it once",
		Long: "Create a token for an app and print it. It is not shown again: Redis keeps only its SHA-256 hash. An\n" +
			"app can have several tokens, so that one can be replaced without an interruption: create,\n" +
			"distribute, remove the old one.",
		Example: "  lockstep tokens create --app docs --redis redis://127.0.0.1:6379\n" +
			"  lockstep tokens create --app docs --json | jq -r .token > token",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if app == "" {
				return term.UsageError(errors.New("--app is required; name the app of the watches whose repositories " +
					"the token may read"))
			}
			if err := watch.CheckApp(app); err != nil {
				return term.UsageError(fmt.Errorf("--app: %w", err))
			}
			return onShared(cmd, std, tokensTimeout, func(ctx context.Context, d deployment) error {
				token, secret, err := access.NewTokens(d.redis, d.cfg.Shared()).Create(ctx, app)
				if err != nil {
					return err
				}
				if watchesNothing(ctx, d.cells, app) {
					defer fmt.Fprintf(std.Stderr, "lockstep: %s watches nothing yet, so the token reads nothing; "+
						"see lockstep watch add --help\n", app)
				}
				created := createdToken{token.ID, token.App, token.Created, secret}
				return out.Show(std, created, created.Table)
			})
		},
	}, config.Common, &out)
	cmd.Flags().StringVar(&app, "app", "", "`app` whose watches decide what the token reads")
	return cmd
}

func newTokensListCommand(std term.Streams) *cobra.Command {
	var app string
	var out term.Output
	cmd := withListFlags(&cobra.Command{
		Use:   "ls",
		Short: "List tokens with their last use",
		Long:  "List the tokens of all apps or of one, with the time of their last use, which may be a minute old.",
		Example: "  lockstep tokens ls --redis redis://127.0.0.1:6379\n" +
			"  lockstep tokens ls --app docs --json --redis redis://127.0.0.1:6379",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return onShared(cmd, std, tokensTimeout, func(ctx context.Context, d deployment) error {
				list, err := access.NewTokens(d.redis, d.cfg.Shared()).List(ctx)
				list = slices.DeleteFunc(list, func(t access.Token) bool { return app != "" && t.App != app })
				return showList(std, &out, list, tokenColumns, nil, err)
			})
		},
	}, config.Common, &out)
	cmd.Flags().StringVar(&app, "app", "", "only tokens of that `app`")
	return cmd
}

func newTokensRemoveCommand(std term.Streams) *cobra.Command {
	var out term.Output
	return withFlags(&cobra.Command{
		Use:   "rm ID",
		Short: "Remove a token, which is refused at once",
		Long: "Remove the token with that ID, as shown by tokens ls. Requests that begin later are refused; a transfer in\n" +
			"progress ends by itself.",
		Example: "  lockstep tokens rm 3f6b2c91d0aa --redis redis://127.0.0.1:6379",
		Args:    term.WrongUse(term.OneArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !access.IsTokenID(args[0]) { // perhaps a token, which is not repeated
				return term.UsageError(errors.New("ID is invalid; want 12 hexadecimal digits, as shown by lockstep tokens ls"))
			}
			return onShared(cmd, std, tokensTimeout, func(ctx context.Context, d deployment) error {
				token, err := access.NewTokens(d.redis, d.cfg.Shared()).Remove(ctx, args[0])
				// an earlier call may have removed it there
				if !d.cells.IsSingle() && (err == nil || errors.Is(err, access.ErrNoSuchToken)) {
					former, failed := forgetToken(ctx, d.cells, args[0])
					if failed != nil {
						return failed
					}
					if err != nil && former.ID != "" {
						token, err = former, nil
					}
				}
				if err != nil {
					return fmt.Errorf("%s: %w", args[0], err)
				}
				removed := removedToken(token)
				return out.Show(std, token, removed.Table)
			})
		},
	}, config.Common, &out)
}

const tokensTimeout = 30 * time.Second

// watchesNothing reports whether an app has no watch in any cell.
func watchesNothing(ctx context.Context, set *cells.Set, app string) bool {
	list, _, missing, err := (&operate.Watches{Cells: set}).List(ctx, watch.Query{App: app, Limit: 1})
	return err == nil && len(missing) == 0 && len(list) == 0
}

// forgetToken removes what a deployment that has become a cell still has of a token: its processes that were
// not restarted since then accept it. It returns the zero token if there was none.
func forgetToken(ctx context.Context, set *cells.Set, id string) (former access.Token, err error) {
	missing, err := operate.Each(ctx, set, func(cell cells.Member) error {
		token, err := access.NewTokens(set.Redis(), cell.Namespace).Remove(ctx, id)
		if errors.Is(err, access.ErrNoSuchToken) {
			return nil
		}
		if err != nil {
			return err
		}
		former = token
		return nil
	})
	if err != nil {
		return former, err
	}
	if len(missing) > 0 {
		return former, fmt.Errorf("removed, but processes that run without --cell may still accept it; "+
			"repeat the command: %w", operate.Unanswered(missing))
	}
	return former, nil
}

type createdToken struct {
	ID      string    `json:"id"`
	App     string    `json:"app"`
	Created time.Time `json:"created"`
	Token   string    `json:"token"`
}

func (c createdToken) Table(w io.Writer) {
	fmt.Fprintf(w, "id\t%s\napp\t%s\ntoken\t%s\n", c.ID, c.App, c.Token)
	fmt.Fprintln(w, "\nThe token is not shown again.")
}

var tokenColumns = term.List[access.Token]{
	Columns: []term.Column[access.Token]{
		{Head: "ID", Text: func(t access.Token) string { return t.ID }},
		{Head: "APP", Text: func(t access.Token) string { return t.App }},
		{Head: "CREATED", Time: func(t access.Token) time.Time { return t.Created }},
		{Head: "LAST USED", Time: func(t access.Token) time.Time { return t.Used }},
	},
	Name:  func(t access.Token) string { return t.ID },
	Empty: "no tokens; create one with lockstep tokens create --app NAME",
}

type removedToken access.Token

func (r removedToken) Table(w io.Writer) {
	fmt.Fprintf(w, "removed\t%s of %s\n", r.ID, r.App)
}
