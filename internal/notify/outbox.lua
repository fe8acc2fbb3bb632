-- outbox.lua is the common part of the scripts that change outboxes. An app has a box for each repository with
-- notifications: its items are sent in order, one at a time.
--
-- KEYS  1 apps (zset: app -> due time of its first box, ms)   2 counts (hash: app -> number of items)
--       3 sizes (hash: app -> bytes of its items)   4 tries (hash: box -> failed attempts of its first item)
--       5 claims (hash: box -> claim of its first item, until settled)   6 dead letters (stream)
--       7 troubled (hash: app -> when a box failed for the first time since the app last accepted an item, ms)
-- ARGV  1 prefix of the keys below   2 approximate number of dead letters to keep
--
-- Keys with the prefix, which share the hash tag:
--       due:{app}         zset: repo -> when its first item may be sent, ms; if claimed, when the claim ends
--       heads:{app}       zset: repo -> number of its first item
--       box:{app} {repo}  list of items: number, space, JSON object
--       errors:{app}      hash: repo -> last error of its first item: ms, '!' if the app named the delay, space, error
--       sent:{app}        zset: entry of a result -> when the app accepted its notification, ms
-- Neither app names nor repository keys contain a space.
--
-- Fails with WRONGTYPE if the dead letters are not a stream; nothing changed.

local apps, counts, sizes, tries, claims, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local troubled, prefix, letters = KEYS[7], ARGV[1], ARGV[2]

local kind = redis.call('TYPE', dead)['ok']
if kind ~= 'stream' and kind ~= 'none' then
  return redis.error_reply('WRONGTYPE the dead letters are not a stream; nothing was changed')
end

local function number(n) return string.format('%.0f', n) end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function due_of(app) return prefix .. 'due:' .. app end
local function heads_of(app) return prefix .. 'heads:' .. app end
local function errors_of(app) return prefix .. 'errors:' .. app end
local function sent_to(app) return prefix .. 'sent:' .. app end
local function name_of(app, repo) return app .. ' ' .. repo end
local function box_of(app, repo) return prefix .. 'box:' .. name_of(app, repo) end

local function head_of(app, repo)
  local head = redis.call('LINDEX', box_of(app, repo), 0)
  if not head then return end
  local n, item = string.match(head, '^(%d+) (.*)$')
  return n or '0', item or head
end

-- index updates the due time of an app's first box.
local function index(app)
  local first = redis.call('ZRANGE', due_of(app), 0, 0, 'WITHSCORES')
  if first[1] then
    redis.call('ZADD', apps, number(tonumber(first[2])), app)
  else
    redis.call('ZREM', apps, app)
  end
end

-- bury turns a box's first item into a dead letter with its fields. The payload of one that cannot be decoded is its text.
local function bury(app, repo, reason, err, attempts)
  local _, text = head_of(app, repo)
  local ok, item = pcall(cjson.decode, text)
  if not ok or type(item) ~= 'table' or type(item.payload) ~= 'string' then
    item = {payload = text, app = app, repo = repo}
  end
  local letter = {'reason', reason, 'error', err, 'attempts', attempts, 'entry',
    type(item.entry) == 'string' and item.entry or '', 'at', number(now),
    'stream', string.sub(prefix, 1, -2), 'group', 'notify', 'consumer', 'notifier'}
  for name, value in pairs(item) do
    if type(value) == 'string' then
      letter[#letter + 1] = 'original:' .. name
      letter[#letter + 1] = value
    end
  end
  redis.call('XADD', dead, 'MAXLEN', '~', letters, '*', unpack(letter))
end

-- forget removes the bookkeeping of an empty box, and of its app if it has no other box.
local function forget(app, repo)
  redis.call('ZREM', heads_of(app), repo)
  redis.call('ZREM', due_of(app), repo)
  redis.call('HDEL', tries, name_of(app, repo))
  redis.call('HDEL', claims, name_of(app, repo))
  redis.call('HDEL', errors_of(app), repo)
  if redis.call('EXISTS', heads_of(app)) == 0 then
    redis.call('HDEL', counts, app)
    redis.call('HDEL', sizes, app)
    redis.call('HDEL', troubled, app)
  end
end

-- hasten makes up to a number of boxes of an app due now, and returns how many were not; index(app) is to follow. One whose
-- first item is being posted stays claimed, and one whose delay the app named waits, unless all are hastened.
local function hasten(app, most, all)
  local n = 0
  for _, repo in ipairs(redis.call('ZRANGEBYSCORE', due_of(app), '(' .. number(now), '+inf', 'LIMIT', 0, most)) do
    local waits = not all and string.match(redis.call('HGET', errors_of(app), repo) or '', '^%d+!')
    if not waits and redis.call('HEXISTS', claims, name_of(app, repo)) == 0 then
      redis.call('ZADD', due_of(app), number(now), repo)
      n = n + 1
    end
  end
  return n
end

-- recovered makes the boxes of an app that has accepted an item due now, if it had accepted none for a minute after a first
-- failure: one that accepts some and refuses others would soon have used up the attempts at those.
local function recovered(app)
  local since = tonumber(redis.call('HGET', troubled, app) or '')
  if since and (now - since < 60000 or hasten(app, 1000) < 1000) then redis.call('HDEL', troubled, app) end
end

-- pop removes a box's first item. The next one is due at the given time.
local function pop(app, repo, at)
  local _, gone = head_of(app, repo)
  redis.call('LPOP', box_of(app, repo))
  redis.call('HDEL', tries, name_of(app, repo))
  redis.call('HDEL', errors_of(app), repo)
  redis.call('HINCRBY', counts, app, -1)
  redis.call('HINCRBY', sizes, app, -#gone)
  local following = head_of(app, repo)
  if following then
    redis.call('ZADD', heads_of(app), following, repo)
    redis.call('ZADD', due_of(app), at, repo)
  else
    forget(app, repo)
  end
end

