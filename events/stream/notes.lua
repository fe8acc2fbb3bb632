-- Notes: shared by the scripts that change the notes of a subject, which it precedes. Notes are lines of a hash field, newest
-- last: name, time in ms of Redis' clock, time of the next attempt in ms or 0, and text, separated by tabs. An index (ZSET) has the
-- subjects with notes, by the time of the newest.

local most_notes = 16 -- older ones are dropped

-- denotes reports whether a pattern is a note's name. The first * of a pattern stands for any text.
local function denotes(pattern, name)
  local at = string.find(pattern, '*', 1, true)
  if not at then return pattern == name end
  local tail = #pattern - at
  return #name >= at - 1 + tail and string.sub(name, 1, at - 1) == string.sub(pattern, 1, at - 1)
    and string.sub(name, #name - tail + 1) == string.sub(pattern, at + 1)
end

-- change_notes removes the notes whose names match a pattern of n.remove, and adds the note n.name, n.text, unless the name is
-- ''. n also has the hash, its field, the index, the subject's member of it, and cleared if the hash has just been removed. now
-- and next are texts.
local function change_notes(n, now, next)
  local value = redis.call('HGET', n.hash, n.field) or ''
  if value == '' and n.name == '' and not n.cleared then return end
  local kept = {}
  for line in string.gmatch(value, '[^\n]+') do
    local name, gone = string.match(line, '^[^\t]*'), false
    for _, pattern in ipairs(n.remove) do gone = gone or denotes(pattern, name) end
    if not gone and name ~= n.name then kept[#kept + 1] = line end
  end
  if n.name ~= '' then
    kept[#kept + 1] = table.concat({n.name, now, next, n.text}, '\t')
    redis.call('ZADD', n.index, now, n.member)
  end
  if #kept > 0 then
    redis.call('HSET', n.hash, n.field, table.concat(kept, '\n', math.max(1, #kept - most_notes + 1)))
  else
    redis.call('HDEL', n.hash, n.field)
    redis.call('ZREM', n.index, n.member)
  end
end

-- notes_of reads the arguments for change_notes with two functions that return the next key and the next argument.
local function notes_of(key, arg)
  local n = {hash = key(), index = key(), field = arg(), member = arg(), name = arg(), text = arg(), remove = {}}
  for i = 1, tonumber(arg()) do n.remove[i] = arg() end
  return n
end

